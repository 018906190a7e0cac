"""ResNet-20 on CIFAR-10 from one float ONNX file: PTQ at W8A8, QAT at low widths, accuracy and parity.

    python tools/bench/cifar10_resnet20.py ptq
    python tools/bench/cifar10_resnet20.py qat --bits 4,4 --epochs 3
    python tools/bench/cifar10_resnet20.py parity runs/cifar10/*.onnx

Starts from ``resnet20_cifar10_bn.onnx`` alone: the teacher is that file. Accuracies are those of the scorer in
onnxruntime's default session; the training set is never scored and the test set never trained or calibrated on.
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

FLOAT = _shared.MODELS / "resnet20_cifar10_bn.onnx"
RUNS = _shared.ROOT / "runs" / "cifar10"


def calibration(count: int = 512) -> np.ndarray:
    """The first training images, preprocessed."""
    scorer = _shared.scorer()
    return np.asarray(scorer.PREPROCESS["cifar10"](scorer.cifar10("train", [1])[0][:count]))


def insert(
    backend: str, output: Path, bits: str | None = None, *, exact: bool = False, batch_norm: str = "fold"
) -> Path:
    """PTQ file of the float model."""
    import onnxqat
    from onnxqat.cli._options import parse_bits
    from onnxqat.placement.table_overrides import Overrides

    weight_bits, activation_bits = parse_bits(bits)
    output.parent.mkdir(parents=True, exist_ok=True)
    onnxqat.insert_qdq(
        FLOAT,
        backend,
        data={"input": calibration()},
        output=output,
        overrides=Overrides(weight_bits=weight_bits, activation_bits=activation_bits, exact=exact),
        batch_norm=batch_norm,
    )
    return output


def report(kind: str, path: Path, **more: Any) -> None:
    """One line of JSON with both accuracies."""
    default = _shared.figure(_shared.score("cifar10", path))
    reference = _shared.figure(_shared.score("cifar10", path, optimize=False))
    print(
        json.dumps({"run": kind, "file": str(path), "top1": default, "top1_unoptimized": reference, **more}), flush=True
    )


def ptq() -> None:
    """W8A8 for three backends."""
    report("float", FLOAT)
    for backend in ("onnxruntime-cpu", "tensorrt", "openvino-cpu"):
        report(f"W8A8 PTQ {backend}", insert(backend, RUNS / f"w8a8_{backend}.onnx"))
        report(f"W8A8 PTQ {backend} --exact", insert(backend, RUNS / f"w8a8_{backend}_exact.onnx", exact=True))


def augment(seed: int) -> Any:
    """Random crop with four pixels of padding and random flip, one draw a sample."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def change(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        images = batch["input"]
        count, device = images.shape[0], images.device
        padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
        shift = torch.randint(0, 9, (2, count), generator=generator).to(device)
        flip = (torch.rand(count, generator=generator) < 0.5).to(device)
        span = torch.arange(32, device=device)
        rows = shift[0][:, None] + span
        columns = shift[1][:, None] + torch.where(flip[:, None], span.flip(0), span)
        samples = torch.arange(count, device=device)[:, None, None]
        return {"input": padded.permute(0, 2, 3, 1)[samples, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)}

    return change


def qat(arguments: argparse.Namespace) -> None:
    """Fine-tune the PTQ file at the widths asked for and score it."""
    import torch

    import onnxqat
    from onnxqat.training.objective.losses import Loss

    torch.set_num_threads(arguments.threads)
    name = f"w{arguments.bits.replace(',', 'a')}"
    start = insert(
        "academic",
        RUNS / f"{name}_ptq{arguments.suffix}.onnx",
        arguments.bits,
        exact=arguments.exact,
        batch_norm=arguments.batch_norm,
    )
    report(f"{name} PTQ", start)
    scorer = _shared.scorer()
    images, labels = scorer.cifar10("train", range(1, arguments.sheets + 1))
    began = time.process_time()

    def progress(step: Any) -> None:
        if step.step % 50 == 0:
            print(
                f"{step.step}/{step.total_steps} loss {step.loss:.4f} lr {step.learning_rate:.5f}",
                file=sys.stderr,
                flush=True,
            )

    result = onnxqat.finetune(
        start,
        {"input": scorer.PREPROCESS["cifar10"](images)},
        labels=labels,
        teacher=FLOAT,
        epochs=arguments.epochs,
        max_steps=arguments.max_steps,
        batch_size=arguments.batch_size,
        optimizer=onnxqat.OptimizerConfig(
            arguments.optimizer,
            scale_learning_rate=arguments.scale_learning_rate,
            weight_decay=arguments.weight_decay,
            ema=arguments.ema,
        ),
        learning_rate=arguments.learning_rate,
        loss=Loss(alpha=arguments.alpha, temperature=arguments.temperature),
        augment=augment(arguments.seed),
        seed=arguments.seed,
        device=arguments.device,
        output=RUNS / f"{name}_qat{arguments.suffix}.onnx",
        progress=progress,
    )
    report(
        f"{name} QAT",
        Path(result.model),
        steps=result.steps,
        losses=[round(v, 4) for v in result.losses],
        cpu_seconds=round(time.process_time() - began),
        wall_seconds=round(result.seconds),
    )


def parity(files: list[Path], count: int, threads: int) -> None:
    """Torch bridge against onnxruntime over the test images: top-1 that differ, largest difference of a logit."""
    import onnx_ir as ir
    import torch

    import onnxqat
    from onnxqat.runtime.session import Session
    from onnxqat.validation import machine

    torch.set_num_threads(threads)
    scorer = _shared.scorer()
    images = scorer.PREPROCESS["cifar10"](scorer.cifar10("test")[0][:count])
    for path in files:
        module = onnxqat.to_torch(path).eval()
        model = ir.load(path)
        precise = machine.precise(model)  # as `validate` has it: no saturation where the target's kernels have none
        sessions = {
            "off": Session(model, optimize=False),
            "default": Session(model, optimize=True, precise=precise),
        }
        differing, largest, equal = dict.fromkeys(sessions, 0), dict.fromkeys(sessions, 0.0), 0
        for start in range(0, len(images), 250):
            batch = images[start : start + 250]
            with torch.no_grad():
                bridge = module(torch.from_numpy(batch)).numpy()
            for name, session in sessions.items():
                logits = session.run({"input": batch})["logits"]
                differing[name] += int((logits.argmax(1) != bridge.argmax(1)).sum())
                largest[name] = max(largest[name], float(np.abs(logits - bridge).max()))
                equal += int((np.abs(logits - bridge).max(1) < 1e-3).sum()) if name == "off" else 0
        row = {
            "file": str(path),
            "images": len(images),
            "differing": differing,
            "largest": largest,
            "equal": equal,
            "precise": precise,
        }
        print(json.dumps(row), flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("ptq")
    checked = commands.add_parser("parity")
    checked.add_argument("files", nargs="+", type=Path)
    checked.add_argument("--count", type=int, default=10000)
    checked.add_argument("--threads", type=int, default=2)
    trained = commands.add_parser("qat")
    trained.add_argument("--bits", default="4,4")
    trained.add_argument("--epochs", type=int, default=3)
    trained.add_argument("--max-steps", type=int)
    trained.add_argument("--batch-size", type=int, default=128)
    trained.add_argument("--optimizer", default="adamw")
    trained.add_argument("--learning-rate", type=float, default=2e-4)
    trained.add_argument("--scale-learning-rate", type=float)
    trained.add_argument("--weight-decay", type=float, default=1e-4)
    trained.add_argument("--alpha", type=float, default=0.7)
    trained.add_argument("--temperature", type=float, default=4.0)
    trained.add_argument("--ema", type=float, default=0.998)
    trained.add_argument("--sheets", type=int, default=5)
    trained.add_argument("--threads", type=int, default=2)
    trained.add_argument("--seed", type=int, default=0)
    trained.add_argument("--device")
    trained.add_argument("--suffix", default="")
    trained.add_argument("--batch-norm", default="fold", choices=["fold", "keep"])
    trained.add_argument("--exact", action="store_true")
    arguments = parser.parse_args()
    if arguments.command == "ptq":
        ptq()
    elif arguments.command == "parity":
        parity(arguments.files, arguments.count, arguments.threads)
    else:
        qat(arguments)


if __name__ == "__main__":
    main()
