"""Widths of accumulators of real networks: proved for any input, in the ranges of data, and reached.

    python tools/bench/accumulators.py [--bits 8,8] [--images 200] [resnet20] [dscnn] [mobilenetv2] ...
    python tools/bench/accumulators.py --minilm model.safetensors minilm
    python tools/bench/accumulators.py --onnxsim PYTHON resnet20

One line a network, of the table's file for ``onnxruntime-cpu``. With ``--onnxsim`` the interpreter of an environment in
which onnxsim 0.8 is installed certifies the operators on codes that onnxruntime makes of the file
(``quant_int_verify.verify_model``, ``overflow_certificate.certify_no_overflow``), and each layer's ends are compared.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _shared
import integer_equality
import integer_minilm
import ptq_peers

RUNS = _shared.ROOT / "runs" / "accumulators"
NETWORKS = integer_equality.NETWORKS | {
    "resnet8": ("resnet8_cifar10_bn", "cifar10-raw"),
    "mobilenetv1": ("mobilenetv1_025_vww", "vww"),
}

Feeds = dict[str, np.ndarray]

CERTIFY = """
import json, re, sys
import onnx
from onnxsim import overflow_certificate, quant_int_verify
model = onnx.load(sys.argv[1])
found = {}
for layer in quant_int_verify.verify_model(model, z3_max_k=16).layers:
    finding = layer.of("no-wrap")
    found[layer.name] = [[f.verdict, f.detail] for f in finding] or [["skipped", str(layer.findings)]]
report = overflow_certificate.certify_no_overflow(model, bits=32)
sums = {f.node: [f.lo, f.hi, f.required_bits] for f in report.findings if f.kind == "accumulator"}
print(json.dumps({"no_wrap": found, "accumulators": sums, "unanalysed": report.unanalysed}))
"""


def on_codes(path: Path) -> Path:
    """The operators on codes that onnxruntime makes of a QDQ file, without those that only it knows."""
    import onnxruntime as ort

    made = path.with_suffix(".codes.onnx")
    level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    integer_equality.session(str(path), optimized_model_filepath=str(made), graph_optimization_level=level)
    return made


def certified(path: Path, python: str) -> dict[str, Any]:
    """What onnxsim says of a file with operators on codes."""
    command = [python, "-c", CERTIFY, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def whole_sums(path: Path) -> dict[str, tuple[int, int]]:
    """Ends of the whole sum of each layer on the whole grid of its input, bias added: onnxsim's question, by node."""
    from onnxqat.calibration import accumulators
    from onnxqat.calibration.columns import filters_of
    from onnxqat.graph import io, query

    found = {}
    for layer in accumulators.layers(io.load(path)):
        if layer.codes is None:
            continue
        grid, zero = layer.input.qparams.qtype, int(layer.input.qparams.zero_point)
        steps = (np.asarray(grid.quant_min - zero), np.asarray(grid.quant_max - zero))
        ends = accumulators.ends(filters_of(layer.codes, layer.node), steps)
        bias = np.zeros(1, np.int64) if layer.bias is None else layer.bias
        found[query.label(layer.node)] = (int((ends.low + bias).min()), int((ends.high + bias).max()))
    return found


def compared(path: Path, python: str) -> dict[str, Any]:
    """Layers of which onnxsim says something, and those whose ends are not ours."""
    said, mine = certified(on_codes(path), python), whole_sums(path)
    equal, differing, silent = 0, list[str](), list[str]()
    for name, ends in mine.items():
        interval = re.search(r"lies in \[(-?\d+), (-?\d+)\]", str(said["no_wrap"].get(name)))
        if interval is None:
            silent.append(name)
        elif (int(interval[1]), int(interval[2])) == ends:
            equal += 1
        else:
            differing.append(f"{name}: {interval[0]} and {ends}")
    reached = [
        name for name, (low, high, _) in said["accumulators"].items() if name in mine and not low <= mine[name][0]
    ]
    return {
        "layers": len(mine),
        "equal": equal,
        "differing": differing,
        "silent": silent,
        "certificates": len(said["accumulators"]),
        "certificates_below_ours": reached,
        "unanalysed": len(said["unanalysed"]),
    }


def given(network: str, samples: int, minilm: Path | None) -> tuple[Path, Feeds, Feeds]:
    """The float file of a network, its calibration inputs, and those that its sums are counted on."""
    from onnxqat.data.inputs import of_graph
    from onnxqat.graph import io

    if network == "minilm":
        tokens = []
        for split in ("train", "test"):
            with np.load(_shared.scorer().DATA / f"stsb_{split}_minilm_tokens.npz") as archive:
                tokens.append(integer_minilm.feeds(archive["ids"][:samples, 0]))
        return ptq_peers.float_file(network, minilm), tokens[0], tokens[1]
    model, task = NETWORKS[network]
    source = _shared.MODELS / f"{model}.onnx"
    name = of_graph(io.load(source).graph)[0].name
    calibration, test = integer_equality.inputs(task, samples)
    return source, {name: calibration}, {name: test}


def run(network: str, bits: str, samples: int, python: str | None, minilm: Path | None) -> dict[str, Any]:
    """One line of the table."""
    import onnxqat
    from onnxqat.cli._options import parse_bits
    from onnxqat.placement.table_overrides import Overrides

    made = RUNS / f"{network}_{bits.replace(',', '_')}.qdq.onnx"
    source, calibration, test = given(network, samples, minilm)
    if not made.exists():
        weight_bits, activation_bits = parse_bits(bits)
        overrides = Overrides(weight_bits=weight_bits, activation_bits=activation_bits)
        onnxqat.insert_qdq(source, "onnxruntime-cpu", data=calibration, output=made, overrides=overrides)
    proof = onnxqat.prove(made, test, float_model=source, output=made.with_suffix(".json"), batch_size=10)
    measured = [layer.measured for layer in proof.layers if layer.measured is not None]
    widest = max(proof.layers, key=lambda layer: layer.proof.bits or 0).proof
    row: dict[str, Any] = {"network": network, "bits": bits, "samples": proof.samples, "layers": len(proof.layers)}
    longest = [layer.proof.longest for layer in proof.layers if layer.proof.longest is not None]
    row |= {"any_input": widest.bits, "node": widest.node, "channel": widest.channel}
    row |= {"longest_in_32": min(longest)} if longest else {}
    row |= {"in_range": max(m.bits_in_range or 0 for m in measured), "on_data": max(m.bits for m in measured)}
    row |= {"beyond_16": sum(m.beyond[16] for m in measured), "sums": sum(m.sums for m in measured)}
    row |= {"fit_16": sum((layer.proof.bits or 64) <= 16 for layer in proof.layers), "unproved": len(proof.unproved)}
    return row | ({} if python is None else {"onnxsim": compared(made, python)})


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join([*NETWORKS, "minilm"]))
    parser.add_argument("--bits", default="8,8")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--minilm", type=Path, help="model.safetensors of all-MiniLM-L6-v2")
    parser.add_argument("--onnxsim", metavar="PYTHON", help="interpreter with onnxsim 0.8")
    arguments = parser.parse_args()
    RUNS.mkdir(parents=True, exist_ok=True)
    for network in arguments.networks or NETWORKS:
        row = run(network, arguments.bits, arguments.images, arguments.onnxsim, arguments.minilm)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
