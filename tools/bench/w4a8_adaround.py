"""4-bit weights and 8-bit activations after training: nearest rounding in three ways, and learned rounding.

    python tools/bench/w4a8_adaround.py
    python tools/bench/w4a8_adaround.py --network resnet20 --samples 1024

MQBench's benchmark has MobileNetV2 on ImageNet at W4A8 with 27.61 (ranges of the extremes), 35.71 (least squared error)
and 71.82 (AdaRound), of 72.68 in float, and ResNet-18 with 52.25, 54.96 and 70.35 of 71.06. The setting is that of its
``configs/adaround`` and ``configs/mse``: weights with a scale and a zero point for each channel, activations with one
for the tensor, scales of any length, first and last layer 8 bits, one layer after the other, no labels. It has 1,024
images and 20,000 iterations a layer; here they are arguments.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _shared
import tasks

RUNS = _shared.ROOT / "runs" / "w4a8_adaround"

TABLE = """schema: 1
backend: w4a8
extends: academic
description: MQBench's academic setting at W4A8
types:
  act: {dtype: uint8, symmetric: false, bits: 8, scale_bits: null}
  wt: {dtype: int8, symmetric: SYMMETRIC, granularity: channel, bits: 4, reduce_range: false, scale_bits: null}
facts:
  types: {source: "ModelTC/MQBench, configs/adaround", status: document}
"""

NETWORKS = {
    "mobilenetv2": tasks.Task("mobilenetv2_imagenet_bn", "imagenet", 100),
    "resnet20": tasks.Task("resnet20_cifar10_bn", "cifar10", 1024),
}


def main() -> None:
    """Insert with each observer, reconstruct from the last, score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="mobilenetv2", choices=list(NETWORKS))
    parser.add_argument("--samples", type=int)
    parser.add_argument("--observers", default="minmax,mse")
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=0.02)
    parser.add_argument("--symmetric", action="store_true")
    parser.add_argument("--compensated", action="store_true", help="the rounding of insert-qdq on data, too")
    parser.add_argument("--recipe", default="adaround")
    given = parser.parse_args()

    import torch

    import onnxqat
    from onnxqat.placement.table_overrides import Overrides

    torch.set_num_threads(1)
    RUNS.mkdir(parents=True, exist_ok=True)
    table = RUNS / "w4a8.yaml"
    table.write_text(TABLE.replace("SYMMETRIC", str(given.symmetric).lower()))
    task = NETWORKS[given.network]
    task = dataclasses.replace(task, samples=given.samples or task.samples)
    source = _shared.MODELS / f"{task.model}.onnx"
    data: dict[str, np.ndarray] = {tasks.input_name(source): tasks.calibration(task)}
    setting = {"network": given.network, "samples": task.samples, "symmetric": given.symmetric}

    def report(name: str, path: Path, **more: object) -> None:
        top1 = _shared.figure(_shared.score(task.task, path, optimize=False))
        print(json.dumps({**setting, "what": name, "top1": top1, **more}), flush=True)

    report("float", source)
    start = source
    for observer in given.observers.split(","):
        start = RUNS / f"{given.network}_{observer}.onnx"
        options = {"data": data, "overrides": Overrides(observer=observer), "batch_size": given.batch_size}
        onnxqat.insert_qdq(source, str(table), output=start, **options)
        report(f"{observer}, nearest", start)
    if given.compensated:
        path = start.with_suffix(".compensated.onnx")
        onnxqat.insert_qdq(source, str(table), output=path, rounding="compensated", **options)
        report(f"{observer}, compensated", path)
    output, began = start.with_suffix(f".{given.recipe}.onnx"), time.process_time()
    result = onnxqat.reconstruct(
        start,
        data,
        recipe=given.recipe,
        limit=task.samples,
        iterations=given.iterations,
        batch_size=given.batch_size,
        learning_rate=given.learning_rate,
        device="cpu",
        output=output,
    )
    kept = f"{sum(block.kept for block in result.blocks)} of {len(result.blocks)}"
    seconds = round(time.process_time() - began)
    report(given.recipe, output, kept=kept, iterations=given.iterations, batch=given.batch_size, cpu_seconds=seconds)


if __name__ == "__main__":
    main()
