"""Accuracy of default files by the number of calibration samples, beside onnxruntime's quantizer on the same ones.

    python tools/bench/few_samples.py [--samples 1 8 32 100] [--draws 3] [--limit 800] [NETWORK ...]

Networks are those of `ptq_peers.py` that have classes. Samples are drawn anew for each draw; rows are means over the
draws, in onnxruntime's default session.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _shared
import ptq_peers

RUNS = _shared.ROOT / "runs" / "few_samples"
MOST = 1000
"""Samples to draw from."""


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=["dscnn", "resnet8", "resnet20"])
    parser.add_argument("--samples", nargs="+", type=int, default=[1, 8, 32, 100])
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--limit", type=int, default=800, help="score this many samples")
    arguments = parser.parse_args()
    RUNS.mkdir(parents=True, exist_ok=True)
    print("| Network | Samples | File | Top-1, float | Top-1 | Agreement | dB |\n|---|---|---|---|---|---|---|")
    for network in arguments.networks:
        for count in arguments.samples:
            for form, rows in found(network, count, arguments.draws, arguments.limit).items():
                float_, metric, agreement, decibels = (
                    float(np.mean([row[key] for row in rows])) for key in ("float", "metric", "agreement", "dB")
                )
                cells = f"{float_:.2f} | {metric:.2f} | {agreement:.1f} | {decibels:.1f}"
                print(f"| {network} | {count} | {form} | {cells} |", flush=True)


def found(network: str, count: int, draws: int, limit: int) -> dict[str, list[dict[str, Any]]]:
    """Rows of `ptq_peers.compared` by the maker of the file, one for each draw."""
    _, task, _ = ptq_peers.NETWORKS[network]
    source = ptq_peers.float_file(network, None)
    name = onnx.load(source).graph.input[0].name
    suite = _shared.scorer()
    pool = suite.split(task)[0][:MOST]
    options = argparse.Namespace(backend=["onnxruntime-cpu"], tool=["onnxruntime"], option=[])
    rows: dict[str, list[dict[str, Any]]] = {}
    for draw in range(draws):
        chosen = np.random.default_rng(draw).permutation(len(pool))[:count]
        data = RUNS / "samples.npz"
        np.savez(data, **{name: suite.PREPROCESS[task](pool[chosen])})
        for maker in ptq_peers.makers(options):
            output = RUNS / f"{network}.{maker.form}.onnx"
            failure = ptq_peers.quantized(source, data, output, maker)
            if failure is not None:
                sys.exit(f"{network}, {count} samples, {maker.form}: {failure}")
            rows.setdefault(maker.form, []).append(ptq_peers.compared(task, source, output, limit))
    return rows


if __name__ == "__main__":
    main()
