"""DARTS on CIFAR-10, end to end: float, W8A8, W4A4 and integers only, in one table.

    python tools/bench/darts.py [--network genotype] [--cells 8] [--channels 16] [--seconds 300] [--steps 100]
    python tools/bench/darts.py --network search --seconds 60

The network is trained in torch for so many seconds of processor time, exported, quantized, fine-tuned with the float file
as teacher, written back, and executed in integers (``fixed-point`` arithmetic). A row says how many operators are left in
float, and how many codes differ between torch, numpy and, with onnxruntime's own arithmetic, its default session.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _shared
import darts_network
import integer_equality

RUNS = _shared.ROOT / "runs" / "darts"


def trained(module: Any, images: np.ndarray, labels: np.ndarray, seconds: float, batch: int = 64) -> int:
    """Train in float for `seconds` of processor time, at least a step; returns the number of steps."""
    import torch

    optimizer = torch.optim.SGD(module.train().parameters(), lr=0.05, momentum=0.9, weight_decay=3e-4)
    random, begin, steps = np.random.default_rng(0), time.process_time(), 0
    while not steps or time.process_time() - begin < seconds:
        share = min((time.process_time() - begin) / max(seconds, 1e-3), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 0.025 * (1 + np.cos(np.pi * share))
        chosen = random.integers(0, len(images), batch)
        x = images[chosen]
        x = np.where(random.random((batch, 1, 1, 1)) < 0.5, x[..., ::-1], x)
        loss = torch.nn.functional.cross_entropy(
            module(torch.from_numpy(np.ascontiguousarray(x))), torch.from_numpy(labels[chosen])
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 5.0)
        optimizer.step()
        steps += 1
    module.eval()
    return steps


def top1(path: Path, images: np.ndarray, labels: np.ndarray) -> float:
    """Percent right in onnxruntime's default session."""
    session = integer_equality.session(str(path))
    found = [session.run(None, {"image": images[i : i + 50]})[0].argmax(1) for i in range(0, len(images), 50)]
    return round(float((np.concatenate(found) == labels).mean() * 100), 2)


def in_integers(path: Path, images: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Accuracy in integers only, operators in float, and codes that differ between the engines."""
    import onnxqat

    engines = [onnxqat.to_integer(path, arithmetic="fixed-point", engine=each) for each in ("torch", "numpy")]
    right = differing = codes = 0
    for start in range(0, len(images), 50):
        part = {"image": images[start : start + 50]}
        runs = [engine.run(part) for engine in (engines if start == 0 else engines[:1])]
        right += int((runs[0].outputs["logits"].argmax(1) == labels[start : start + 50]).sum())
        for name, value in runs[0].codes.items() if len(runs) > 1 else ():
            codes += value.size
            differing += int((value != runs[1].codes[name]).sum())
    beside = integer_equality.compared(path, "image", images[:50], 10)
    row: dict[str, Any] = {
        "integers_only": round(100 * right / len(images), 2),
        "in_float": engines[0].float_operators(),
    }
    row |= {"kernels": len(engines[0].kernels), "codes": codes, "torch_numpy": differing}
    return row | {"onnxruntime": beside["codes_differing"], "onnxruntime_codes": beside["codes"]}


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=["genotype", "search"], default="genotype")
    parser.add_argument("--cells", type=int, default=8)
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=300, help="processor time of training in float")
    parser.add_argument("--steps", type=int, default=100, help="fine-tuning steps of each width")
    parser.add_argument("--images", type=int, default=1000, help="test images")
    parser.add_argument("--calibration", type=int, default=256, help="images that ranges are observed on")
    parser.add_argument("--bits", nargs="*", default=["8,8", "4,4"])
    arguments = parser.parse_args()

    import torch

    import onnxqat
    from onnxqat.cli._options import parse_bits
    from onnxqat.placement.table_overrides import Overrides

    torch.manual_seed(0)
    torch.set_num_threads(1)
    RUNS.mkdir(parents=True, exist_ok=True)
    suite = _shared.scorer()
    prepare = suite.PREPROCESS["cifar10"]
    images, labels = suite.cifar10("train", [1])
    test, wanted = suite.cifar10("test")
    images, test, wanted = prepare(images), prepare(test[: arguments.images]), wanted[: arguments.images]
    if arguments.network == "genotype":
        module: Any = darts_network.Network(arguments.channels, arguments.cells)
        name = f"genotype_{arguments.cells}_{arguments.channels}"
    else:
        module, name = darts_network.SearchCell(arguments.channels), f"search_{arguments.channels}"
    steps = trained(module, images, labels, arguments.seconds)
    floating = RUNS / f"{name}.onnx"
    onnxqat.export(
        module,
        {"image": torch.from_numpy(images[:2])},
        floating,
        output_names=["logits"],
    )
    row: dict[str, Any] = {"network": name, "training_steps": steps, "float": top1(floating, test, wanted)}
    print(json.dumps(row), flush=True)
    for bits in arguments.bits:
        widths = parse_bits(bits)
        start, tuned = (RUNS / f"{name}_{bits.replace(',', '_')}{end}.onnx" for end in ("", "_tuned"))
        overrides = Overrides(weight_bits=widths[0], activation_bits=widths[1], integer="all")
        onnxqat.insert_qdq(
            floating,
            "onnxruntime-cpu",
            data={"image": images[: arguments.calibration]},
            output=start,
            overrides=overrides,
        )
        written = start
        if arguments.steps:
            onnxqat.finetune(
                start, {"image": images}, teacher=floating, max_steps=arguments.steps, batch_size=32, output=tuned
            )
            written = tuned
        found = {"bits": bits, "ptq": top1(start, test, wanted), "tuned": top1(written, test, wanted)}
        print(json.dumps(row | found | in_integers(written, test, wanted)), flush=True)


if __name__ == "__main__":
    main()
