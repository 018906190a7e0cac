"""Mixed precision of scored networks under a budget: the file's score beside that of the float model.

    python tools/bench/mixed_precision.py [--weight-bytes AMOUNT] [--backend NAME] [--limit N] [--noise METHOD] [NETWORK ...]

Calibration inputs are those of the scorer, which are not scored. Each row has the top-1 of float and file on the first N
test samples, the signal to noise on 64 calibration samples as predicted and as measured, and the CPU seconds. Rows are
kept in runs/mixed_precision/rows.jsonl, beside the files.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _shared

RUNS = _shared.ROOT / "runs" / "mixed_precision"
NETWORKS = {
    "dscnn": ("dscnn_kws", "kws"),
    "resnet20": ("resnet20_cifar10_bn", "cifar10"),
    "mobilenetv2": ("mobilenetv2_imagenet_bn", "imagenet"),
}
SAMPLES = 100


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []])
    parser.add_argument("--weight-bytes", default="50%")
    parser.add_argument("--backend", default="onnxruntime-cpu")
    parser.add_argument("--noise", default="auto")
    parser.add_argument("--limit", type=int, default=300)
    arguments = parser.parse_args()
    RUNS.mkdir(parents=True, exist_ok=True)
    for network in arguments.networks or NETWORKS:
        found = row(network, arguments)
        print(json.dumps(found), flush=True)
        with (RUNS / "rows.jsonl").open("a") as rows:
            rows.write(json.dumps(found) + "\n")


def row(network: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Choose widths for one network, and score the file."""
    import onnx

    import onnxqat

    model, task = NETWORKS[network]
    source, file = _shared.MODELS / f"{model}.onnx", RUNS / f"{network}.qdq.onnx"
    suite = _shared.scorer()
    name = onnx.load(source).graph.input[0].name
    data = {name: suite.PREPROCESS[task](suite.split(task)[0][:SAMPLES])}
    start, budget = time.process_time(), onnxqat.Budget(weight_bytes=arguments.weight_bytes)
    found = onnxqat.mixed_precision(source, arguments.backend, data, budget, method=arguments.noise, output=file)
    return {
        "network": network,
        "backend": arguments.backend,
        "share of 8 bits": round(found.total / found.whole, 4),
        "float": _shared.figure(suite.score(task, source, arguments.limit)),
        "file": _shared.figure(suite.score(task, file, arguments.limit)),
        "n": arguments.limit,
        "predicted dB": round(found.predicted_db, 1),
        "measured dB": round(found.measured_db, 1),
        "noise": found.method,
        "widths": {layer.node: layer.weight_bits for layer in found.layers},
        "cpu seconds": round(time.process_time() - start),
    }


if __name__ == "__main__":
    main()
