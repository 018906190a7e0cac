"""How CPU time of insert-qdq, lint and explain grows with the number of nodes.

    python tools/bench/scaling.py
    python tools/bench/scaling.py --sizes 1000 3000 10000 --runs 3

Two networks: a chain of residual blocks, and one tensor with as many readers as the size says, which one Concat joins.
lint and explain read what insert-qdq wrote. The kernel counts each command as a process, start and imports included; of
the runs the lowest counts, as other processes on the cores raise it. An exponent of 1 is linear; the one printed is
that between the smallest and the largest size. Leaves with status 1 where one is above --limit.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

COMMANDS = ("insert-qdq", "lint", "explain")


def chain(size: int) -> onnx.ModelProto:
    """Blocks of Conv, Relu and Add, one behind the other."""
    random, nodes, weights, value = np.random.default_rng(0), [], [], "x"
    for i in range(size // 3):
        weights.append(numpy_helper.from_array(random.normal(0, 0.01, (8, 8, 1, 1)).astype(np.float32), f"w{i}"))
        nodes += [
            helper.make_node("Conv", [value, f"w{i}"], [f"c{i}"], f"conv{i}"),
            helper.make_node("Relu", [f"c{i}"], [f"r{i}"], f"relu{i}"),
            helper.make_node("Add", [f"r{i}", value], [f"a{i}"], f"add{i}"),
        ]
        value = f"a{i}"
    return _model(nodes, weights, [1, 8, 4, 4], value)


def wide(size: int) -> onnx.ModelProto:
    """A MatMul that so many nodes read, and a Concat of what they make."""
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    readers = [helper.make_node("Relu", ["m"], [f"r{i}"], f"relu{i}") for i in range(size)]
    joined = helper.make_node("Concat", [f"r{i}" for i in range(size)], ["y"], "concat", axis=0)
    return _model([helper.make_node("MatMul", ["x", "w"], ["m"], "matmul"), *readers, joined], [weight], [1, 4], "y")


def _model(
    nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto], shape: list[int], result: str
) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info(result, TensorProto.FLOAT, [None] * len(shape))]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def seconds(command: str, folder: Path) -> float:
    """CPU seconds of one process."""
    options = ["model.onnx", "--random-data", "-o", "model.qdq.onnx"] if command == "insert-qdq" else ["model.qdq.onnx"]
    process = subprocess.Popen(
        [sys.executable, "-m", "onnxqat", command, *options],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{command} left with status {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 3000, 10000])
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=1.15)
    arguments = parser.parse_args()
    sizes, steep = sorted(arguments.sizes), False
    for name, build in (("chain", chain), ("wide", wide)):
        times: dict[str, list[float]] = {command: [] for command in COMMANDS}
        for size in sizes:
            with tempfile.TemporaryDirectory() as folder:
                onnx.save(build(size), Path(folder, "model.onnx"))
                for command in COMMANDS:
                    times[command].append(min(seconds(command, Path(folder)) for _ in range(arguments.runs)))
        for command, found in times.items():
            exponent = math.log(found[-1] / found[0]) / math.log(sizes[-1] / sizes[0])
            steep |= exponent > arguments.limit
            figures = ", ".join(f"{size}: {cpu:.1f} s" for size, cpu in zip(sizes, found, strict=True))
            print(f"{name:<6} {command:<11} n^{exponent:.2f}  ({figures})", flush=True)
    return int(steep)


if __name__ == "__main__":
    sys.exit(main())
