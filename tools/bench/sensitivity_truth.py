"""The layers that `profile` names, beside an exhaustive search for the layer whose exclusion helps most.

    python tools/bench/sensitivity_truth.py [--samples N] [--layers N] [NETWORK ...]

Each network is quantized to W8A8 with one scale a tensor, profiled by layer on calibration samples, and then each layer
by itself is taken out of the file: its inputs are read in front of their pairs, all else stays, and onnxruntime runs
the file over samples that calibration did not see. A row has the signal to noise of the output with all layers
quantized, the layer whose exclusion helps most and what it gives, the five that `profile` names first (alone, and all
others on), and the place at which that layer stands among those. ``--layers`` tries the first N of the profile's order
and N others, spread evenly, instead of all. Rows are kept in runs/sensitivity_truth/rows.jsonl.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _shared

RUNS = _shared.ROOT / "runs" / "sensitivity_truth"
NETWORKS = {
    "dscnn": ("dscnn_kws", "kws"),
    "resnet20": ("resnet20_cifar10_bn", "cifar10"),
    "mobilenetv2": ("mobilenetv2_imagenet_bn", "imagenet"),
}
NAMED = 5


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []])
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--layers", type=int, help="try that many of the first layers, and as many others")
    arguments = parser.parse_args()
    RUNS.mkdir(parents=True, exist_ok=True)
    for network in arguments.networks or NETWORKS:
        found = row(network, arguments.samples, arguments.layers)
        print(json.dumps(found), flush=True)
        with (RUNS / "rows.jsonl").open("a") as rows:
            rows.write(json.dumps(found) + "\n")


def row(network: str, samples: int, layers: int | None) -> dict[str, Any]:
    """Profile one network, and try its layers one by one."""
    import onnxqat
    from onnxqat.placement.table_overrides import Overrides

    model, task = NETWORKS[network]
    source, file = _shared.MODELS / f"{model}.onnx", RUNS / f"{network}.qdq.onnx"
    suite = _shared.scorer()
    seen, unseen, _ = suite.split(task)
    name = onnx.load(source).graph.input[0].name
    data, held_out = ({name: suite.PREPROCESS[task](part[:samples])} for part in (seen, unseen))
    overrides = Overrides(per_channel=False)
    onnxqat.insert_qdq(source, data=data, output=file, overrides=overrides, fast=True, guard=False)
    start = time.process_time()
    profiled = onnxqat.profile(source, file, data, by="layer", ways=("alone", "off"), limit=samples)
    seconds = time.process_time() - start
    alone = [layer.node for layer in profiled.layers]
    off = [layer.node for layer in sorted(profiled.layers, key=lambda layer: -(layer.off_db or -math.inf))]
    tried = alone if layers is None else list(dict.fromkeys([*alone[:layers], *alone[:: max(len(alone) // layers, 1)]]))
    reference = run(onnx.load(source), held_out)
    before = decibels(reference, run(onnx.load(file), held_out))
    gains = {node: decibels(reference, run(without(onnx.load(file), node), held_out)) - before for node in tried}
    best = max(gains, key=gains.__getitem__)
    return {
        "network": network,
        "samples": samples,
        "layers": len(alone),
        "tried": len(tried),
        "dB": round(before, 2),
        "best": best,
        "gain": round(gains[best], 2),
        "alone": {node: round(gains.get(node, math.nan), 2) for node in alone[:NAMED]},
        "off": {node: round(gains.get(node, math.nan), 2) for node in off[:NAMED]},
        "place alone": alone.index(best) + 1,
        "place off": off.index(best) + 1,
        "cpu seconds of profile": round(seconds),
    }


def without(model: onnx.ModelProto, label: str) -> onnx.ModelProto:
    """`model`, in which the node of this name reads its inputs in front of their pairs; a stored bias stays."""
    makers = {output: node for node in model.graph.node for output in node.output}
    node = next(n for n in model.graph.node if label in (n.name, *n.output))
    for index, name in enumerate(node.input):
        maker = makers.get(name)
        while maker is not None and maker.op_type in ("DequantizeLinear", "Clip"):
            maker = makers.get(maker.input[0])
        if maker is not None and maker.op_type == "QuantizeLinear" and makers[name].op_type == "DequantizeLinear":
            node.input[index] = maker.input[0]
    return model


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """First output for all samples, one at a time, as the file is written: no graph optimizations."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    count = len(next(iter(feeds.values())))
    found = [session.run(None, {k: v[i : i + 1] for k, v in feeds.items()})[0] for i in range(count)]
    return np.concatenate(found)


def decibels(reference: np.ndarray, given: np.ndarray) -> float:
    """Signal to noise of all values, in dB."""
    noise = np.square(reference.astype(np.float64) - given).sum()
    return 10 * math.log10(np.square(reference.astype(np.float64)).sum() / max(noise, 1e-30))


if __name__ == "__main__":
    main()
