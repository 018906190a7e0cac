"""The whole path on real networks and data: float, W8A8 PTQ, label-free fine-tuning, parity.

    python tools/bench/tasks.py [mobilenetv2] [efficientnet] [dscnn] [yolox] ...

Calibration and fine-tuning see the calibration inputs of the scorer alone (no labels, no test sample), with the float
file as teacher. The detector's calibration inputs would be scored images; it gets mosaics of ImageNet images instead.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _shared

RUNS = _shared.ROOT / "runs" / "tasks"


@dataclasses.dataclass(frozen=True)
class Task:
    """A network, the scorer's task, and how it is quantized and tuned; no epochs: calibration alone."""

    model: str
    task: str
    samples: int
    per_channel: bool = True
    epochs: int = 0
    batch_size: int = 10
    learning_rate: float = 1e-4
    observer: str | None = None
    reduce_range: bool | None = None
    rounding: Literal["nearest", "compensated"] = "nearest"


TASKS = {
    "mobilenetv2": Task("mobilenetv2_imagenet_bn", "imagenet", 100, epochs=6, learning_rate=3e-5),
    "efficientnet": Task(
        "efficientnet_lite0_imagenet", "imagenet-lite", 100, per_channel=False, epochs=10, learning_rate=1e-4
    ),
    "efficientnet-full-range": Task(
        "efficientnet_lite0_imagenet",
        "imagenet-lite",
        100,
        per_channel=False,
        epochs=10,
        learning_rate=1e-4,
        reduce_range=False,
    ),
    "dscnn": Task("dscnn_kws", "kws", 200, epochs=20, batch_size=20, learning_rate=1e-4),
    "yolox": Task("yolox_nano_coco_416", "yolox", 32, batch_size=4, observer="mse", rounding="compensated"),
}


def mosaics(count: int) -> np.ndarray:
    """Four ImageNet images each, as the detector's scorer prepares its own: float32 (count, 3, 416, 416)."""
    from PIL import Image

    sys.path.insert(0, str(_shared.SCORER.parent))
    import accuracy

    images, _ = accuracy.imagenet1000()
    chosen = images[np.random.default_rng(0).permutation(len(images))[: 4 * count]]
    rows = chosen.reshape(count, 2, 2, *chosen.shape[1:]).transpose(0, 1, 3, 2, 4, 5)
    sheets = rows.reshape(count, 2 * chosen.shape[1], 2 * chosen.shape[2], 3)
    return np.concatenate([accuracy.detector_input("yolox", Image.fromarray(sheet))[0] for sheet in sheets])


def calibration(task: Task) -> np.ndarray:
    """Calibration inputs that are not scored."""
    import subprocess

    if task.task == "yolox":
        return mosaics(task.samples)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calibration.npz"
        command = [
            sys.executable,
            str(_shared.SCORER),
            task.task,
            "--calibration",
            str(path),
            "--count",
            str(task.samples),
        ]
        subprocess.run(command, check=True, capture_output=True)
        with np.load(path) as archive:
            return np.asarray(archive["input"])


def input_name(path: Path) -> str:
    """Name of the only input."""
    from onnxqat.data.inputs import of_graph
    from onnxqat.graph import io

    return of_graph(io.load(path).graph)[0].name


def run(name: str, backend: str, threads: int) -> dict[str, Any]:
    """One row of the table."""
    import onnxqat
    from onnxqat.placement.table_overrides import Overrides

    task = TASKS[name]
    source, start = _shared.MODELS / f"{task.model}.onnx", time.process_time()
    data = {input_name(source): calibration(task)}
    quantized = RUNS / f"{name}_{backend}.onnx"
    overrides = Overrides(
        per_channel=None if task.per_channel else False, observer=task.observer, reduce_range=task.reduce_range
    )
    onnxqat.insert_qdq(
        source,
        backend,
        data=data,
        output=quantized,
        overrides=overrides,
        batch_size=task.batch_size,
        rounding=task.rounding,
    )
    row: dict[str, Any] = {
        "model": task.model,
        "backend": backend,
        "float": _shared.figure(_shared.score(task.task, source)),
    }
    row["ptq"] = _shared.figure(_shared.score(task.task, quantized))
    row["ptq unoptimized"] = _shared.figure(_shared.score(task.task, quantized, optimize=False))
    print(json.dumps(row), flush=True)
    if task.epochs:
        import torch

        torch.set_num_threads(threads)
        tuned = RUNS / f"{name}_{backend}_tuned.onnx"
        result = onnxqat.finetune(
            quantized,
            data,
            teacher=source,
            epochs=task.epochs,
            batch_size=task.batch_size,
            learning_rate=task.learning_rate,
            output=tuned,
        )
        row |= {"tuned": _shared.figure(_shared.score(task.task, tuned)), "steps": result.steps}
        row["tuned unoptimized"] = _shared.figure(_shared.score(task.task, tuned, optimize=False))
        quantized = tuned
    report = onnxqat.validate(source, quantized, data, batch_size=task.batch_size)
    row["parity"] = [(c.run, c.against, c.differing_top1, c.max_abs, round(c.sqnr_db, 1)) for c in report.outputs]
    row["cpu seconds"] = round(time.process_time() - start)
    return row


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*TASKS, []])
    parser.add_argument("--backend", default="onnxruntime-cpu")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    RUNS.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or TASKS:
        print(json.dumps(run(name, arguments.backend, arguments.threads)), flush=True)


if __name__ == "__main__":
    main()
