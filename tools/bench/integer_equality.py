"""Values that differ between a module that computes on integers and onnxruntime's default session, on real data.

    python tools/bench/integer_equality.py [--images N] [--steps N] [resnet20] [mobilenetv2] ...

Files are those of the table's defaults. One line a network: differing output values of the module in float
simulation and in integers, before and after training steps against the float model's outputs, and what a step takes.
Where a processor has no VNNI, the session keeps u8 x s8 products from saturating (``session.x64quantprecision``).
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

RUNS = _shared.ROOT / "runs" / "integer_equality"
NETWORKS = {
    "resnet20": ("resnet20_cifar10_bn", "cifar10"),
    "mobilenetv2": ("mobilenetv2_imagenet_bn", "imagenet"),
    "efficientnet": ("efficientnet_lite0_imagenet", "imagenet-lite"),
    "dscnn": ("dscnn_kws_bn", "kws"),
    "yolox": ("yolox_nano_coco_416", "yolox"),
    "nanodet": ("nanodet_coco_320", "nanodet"),
}
BATCH = 10


def inputs(task: str, images: int) -> tuple[np.ndarray, np.ndarray]:
    """Calibration and test inputs, preprocessed; those of detectors are the same images, none of which is scored here."""
    suite = _shared.scorer()
    if task in ("yolox", "nanodet"):
        found = np.concatenate(
            [suite.detector_input(task, image)[0] for image, *_ in suite.coco128()][: max(images, 16)]
        )
        return found[:16], found[:images]
    calibration, test, _ = suite.split(task)
    prepare = suite.PREPROCESS[task]
    return prepare(calibration[:100]), prepare(test[:images])


def session(path: Path) -> Any:
    """The default session."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def differing(module: Any, path: Path, name: str, test: np.ndarray, batch: int) -> tuple[int, int]:
    """Output values that differ, and how many there are."""
    import torch

    runtime, wrong, total = session(path), 0, 0
    for start in range(0, len(test), batch):
        part = test[start : start + batch]
        with torch.no_grad():
            found = module.eval()(torch.from_numpy(part))
        for mine, theirs in zip(
            found if isinstance(found, tuple) else (found,), runtime.run(None, {name: part}), strict=True
        ):
            wrong, total = wrong + int((mine.numpy() != theirs).sum()), total + theirs.size
    return wrong, total


def train(module: Any, teacher: Any, data: np.ndarray, steps: int, batch: int) -> float:
    """Seconds that the median step takes."""
    import torch

    optimizer, taken = torch.optim.AdamW(module.train().parameters(), lr=1e-5), list[float]()
    rng = np.random.default_rng(0)
    for _ in range(steps):
        x = torch.from_numpy(data[rng.choice(len(data), batch, replace=False)])
        start = time.perf_counter()
        with torch.no_grad():
            wanted = teacher(x)
        found = module(x)
        pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
        loss = torch.stack([torch.nn.functional.mse_loss(a, b) for a, b in pairs]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        taken.append(time.perf_counter() - start)
    return float(np.median(taken))


def run(network: str, images: int, steps: int) -> dict[str, Any]:
    """One line of the table."""
    import onnxqat
    from onnxqat.calibration.inputs import of_graph
    from onnxqat.graph import io

    model, task = NETWORKS[network]
    source, made = _shared.MODELS / f"{model}.onnx", RUNS / f"{network}.qdq.onnx"
    name = of_graph(io.load(source).graph)[0].name
    calibration, test = inputs(task, images)
    batch = 1 if task in ("yolox", "nanodet") else BATCH
    onnxqat.insert_qdq(source, "onnxruntime-cpu", calibration={name: calibration}, output=made)
    simulated, exact = onnxqat.to_torch(made), onnxqat.to_torch(made, arithmetic="onnxruntime")
    row: dict[str, Any] = {"network": network, "images": len(test)}
    row["simulated"], row["values"] = differing(simulated, made, name, test, batch)
    row["integers"], _ = differing(exact, made, name, test, batch)
    if steps:
        teacher, tuned = onnxqat.to_torch(source), RUNS / f"{network}.tuned.onnx"
        plain = train(simulated, teacher, calibration, min(steps, 12), batch)
        taken = train(exact, teacher, calibration, steps, batch)
        onnxqat.write_back(exact.eval(), made, tuned)
        row["integers_trained"], _ = differing(exact, tuned, name, test, batch)
        row |= {"step_simulated_s": round(plain, 3), "step_integers_s": round(taken, 3)}
    return row


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(NETWORKS))
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--steps", type=int, default=0)
    arguments = parser.parse_args()
    RUNS.mkdir(parents=True, exist_ok=True)
    for network in arguments.networks or NETWORKS:
        print(json.dumps(run(network, arguments.images, arguments.steps)), flush=True)


if __name__ == "__main__":
    main()
