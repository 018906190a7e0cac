"""Codes of single operators in LiteRT's reference kernels beside execution in integers, operator by operator.

    onnxqat handoff --install litert
    python tools/bench/litert_operators.py [--draws N] [--samples N] [conv] [softmax] ...

Each operator stands between int8 pairs in :data:`DRAWS` places of one model, each with grids of its own, drawn at random;
its inputs are random codes. Our writer makes the file, and the interpreter of ai-edge-litert runs it with its reference
kernels. A row counts the codes that differ from those of ``to_integer`` with the arithmetics ``litert`` and
``fixed-point``, and the largest difference in steps of the result.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DRAWS, SAMPLES = 6, 8
SHAPE, FLAT, ROWS = (1, 8, 8, 8), (16, 64), (64, 10)


@dataclasses.dataclass(frozen=True)
class Case:
    """An operator.

    Attributes:
        op_type: of ONNX.
        builtin: operators of LiteRT that it becomes.
        operands: how many tensors of codes it reads.
        weights: shapes of kernel and, behind it, of the bias.
        attributes: of ONNX.
        constants: further inputs.
        flat: read a matrix.
        result: range of the result; None: that of the float operator on random numbers.
        same_grid: the result lies on the grid of the operand.
    """

    op_type: str
    builtin: str
    operands: int = 1
    weights: tuple[tuple[int, ...], ...] = ()
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)
    constants: tuple[np.ndarray | None, ...] = ()
    flat: bool = False
    result: tuple[float, float] | None = None
    same_grid: bool = False


_PADDED = {"pads": [1, 1, 1, 1], "strides": [2, 2]}
CASES = {
    "conv": Case("Conv", "CONV_2D", weights=((8, 8, 3, 3), (8,)), attributes=_PADDED),
    "depthwise": Case(
        "Conv", "DEPTHWISE_CONV_2D", weights=((8, 1, 3, 3), (8,)), attributes={"pads": [1, 1, 1, 1], "group": 8}
    ),
    "fully connected": Case("Gemm", "FULLY_CONNECTED", weights=((8, 64), (8,)), attributes={"transB": 1}, flat=True),
    "add": Case("Add", "ADD", operands=2),
    "sub": Case("Sub", "SUB", operands=2),
    "mul": Case("Mul", "MUL", operands=2),
    "max": Case("Max", "QUANTIZE, MAXIMUM", operands=2),
    "concat": Case("Concat", "QUANTIZE, CONCATENATION", operands=2, attributes={"axis": 1}),
    "max pool": Case("MaxPool", "MAX_POOL_2D", attributes={"kernel_shape": [3, 3], **_PADDED}, same_grid=True),
    "average pool": Case(
        "AveragePool", "AVERAGE_POOL_2D", attributes={"kernel_shape": [3, 3], **_PADDED}, same_grid=True
    ),
    "global average pool": Case("GlobalAveragePool", "MEAN", result=(-2.5, 2.2)),
    "mean": Case("ReduceMean", "MEAN", attributes={"keepdims": 1}, constants=(np.array([2, 3]),), result=(-2.0, 2.4)),
    "softmax": Case("Softmax", "SOFTMAX", attributes={"axis": -1}, flat=True, result=(0.0, 255 / 256)),
    "logistic": Case("Sigmoid", "LOGISTIC", result=(0.0, 255 / 256)),
    "tanh": Case("Tanh", "TANH", result=(-1.0, 127 / 128)),
    "leaky relu": Case("LeakyRelu", "LEAKY_RELU", attributes={"alpha": 0.1}),
    "hard swish": Case("HardSwish", "HARD_SWISH"),
}
"""Operators by name."""


@dataclasses.dataclass(frozen=True)
class Row:
    """What was found for an operator.

    Attributes:
        name: of the case.
        builtin: operators of LiteRT.
        codes: how many were compared.
        differing: those that differ, by arithmetic.
        steps: largest difference in steps, by arithmetic.
        in_float: outputs that execution in integers computes in float, by arithmetic.
    """

    name: str
    builtin: str
    codes: int
    differing: dict[str, int]
    steps: dict[str, int]
    in_float: dict[str, int]


class Network:
    """The model of a case, with inputs that are codes of its grids."""

    def __init__(self, case: Case, draws: int, seed: int) -> None:
        self.case, self.random = case, np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.grids: dict[str, tuple[np.float32, int]] = {}
        self.shape = FLAT if case.flat and case.weights else ROWS if case.flat else SHAPE
        outputs = [self._place(index) for index in range(draws)]
        inputs = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shape) for name in self.grids if name[0] == "x"
        ]
        results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "operators", inputs, results, self.constants)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        self.model = onnx.shape_inference.infer_shapes(made, strict_mode=True)

    def feeds(self) -> dict[str, np.ndarray]:
        """One sample: dequantized codes."""
        return {
            name: ((self.random.integers(-128, 128, self.shape) - zero) * scale).astype(np.float32)
            for name, (scale, zero) in self.grids.items()
            if name[0] == "x"
        }

    def _held(self, name: str, value: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def _paired(self, tensor: str, low: float, high: float) -> str:
        """Quantize and dequantize `tensor` on the grid of a range that holds zero."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = np.float32((high - low) / 255)
        zero = int(np.clip(np.rint(-128 - low / scale), -128, 127))
        self.grids[tensor] = (scale, zero)
        qparams = [self._held(f"{tensor}_scale", scale), self._held(f"{tensor}_zero_point", np.int8(zero))]
        self.nodes.append(helper.make_node("QuantizeLinear", [tensor, *qparams], [f"{tensor}_codes"]))
        self.nodes.append(helper.make_node("DequantizeLinear", [f"{tensor}_codes", *qparams], [f"{tensor}_values"]))
        return f"{tensor}_values"

    def _weights(self, index: int, scale: np.float32) -> list[str]:
        """A kernel with one scale for each channel (one for all in a fully connected layer), and its int32 bias."""
        (kernel, bias), random = self.case.weights, self.random
        per_channel = () if self.case.flat else kernel[:1]
        scales = random.uniform(0.002, 0.01, per_channel).astype(np.float32)
        values = {
            f"w{index}": (random.integers(-127, 128, kernel).astype(np.int8), scales, np.zeros(per_channel, np.int8)),
            f"b{index}": (
                random.integers(-3000, 3000, bias).astype(np.int32),
                scale * scales,
                np.zeros(per_channel, np.int32),
            ),
        }
        for name, parts in values.items():
            held = [
                self._held(f"{name}_{part}", v) for part, v in zip(("codes", "scale", "zero_point"), parts, strict=True)
            ]
            self.nodes.append(helper.make_node("DequantizeLinear", held, [name], axis=0 if per_channel else 1))
        return list(values)

    def _place(self, index: int) -> str:
        case, random = self.case, self.random
        ends = [(-random.uniform(0.2, 4.0), random.uniform(0.2, 4.0)) for _ in range(case.operands)]
        read = [self._paired(f"x{index}_{k}", *range_) for k, range_ in enumerate(ends)]
        scale, zero = self.grids[f"x{index}_0"]
        given = read + (self._weights(index, scale) if case.weights else [])
        given += [self._held(f"c{index}_{k}", v) for k, v in enumerate(case.constants) if v is not None]
        self.nodes.append(helper.make_node(case.op_type, given, [f"y{index}"], **case.attributes))
        spread = random.uniform(1.0, 3.0) * (np.sqrt(np.prod(case.weights[0][1:])) * 0.4 if case.weights else 1.0)
        low, high = case.result or (-random.uniform(0.3, 1.0) * spread, random.uniform(0.3, 1.0) * spread)
        if case.same_grid:
            low, high = (-128 - zero) * float(scale), (127 - zero) * float(scale)
        return self._paired(f"y{index}", low, high)


def compared(name: str, *, draws: int = DRAWS, samples: int = SAMPLES, seed: int = 0) -> Row:
    """Run one operator in the interpreter and in integers."""
    import onnxqat
    from onnxqat.deployment.compilers import litert
    from onnxqat.deployment.run.process import compile_in_process

    network = Network(CASES[name], draws, seed)
    batches = [network.feeds() for _ in range(samples)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "operators.onnx"
        onnx.save(network.model, path)
        result = compile_in_process(litert.Compiler(), path, batches)
    differing, steps, in_float, codes = {}, {}, {}, 0
    for arithmetic in ("litert", "fixed-point"):
        executed = onnxqat.to_integer(network.model, arithmetic=arithmetic)  # type: ignore[arg-type]
        in_float[arithmetic] = len(executed.float_operators())
        found, codes = [], 0
        for feeds, theirs in zip(batches, result.outputs, strict=True):
            ours = executed.run(feeds).outputs
            for tensor, value in theirs.items():
                scale, _ = network.grids[tensor.removesuffix("_values")]
                codes += value.size
                found.append(np.abs(np.rint((ours[tensor].astype(np.float64) - value) / scale)).reshape(-1))
        distances = np.concatenate(found)
        differing[arithmetic], steps[arithmetic] = int((distances > 0).sum()), int(distances.max())
    return Row(name, CASES[name].builtin, codes, differing, steps, in_float)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*", choices=[*CASES, []], metavar="OPERATOR", help=", ".join(CASES))
    parser.add_argument("--draws", type=int, default=DRAWS, help="places with grids of their own")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    arguments = parser.parse_args()
    print("| Operator | LiteRT | Codes | `litert` | `fixed-point` |\n|---|---|---|---|---|", flush=True)
    for name in arguments.operators or CASES:
        row = compared(name, draws=arguments.draws, samples=arguments.samples)
        cells = [
            f"{row.differing[a]:,}" + f" ({row.steps[a]})" * bool(row.steps[a]) + " in float" * bool(row.in_float[a])
            for a in row.differing
        ]
        print("| " + " | ".join([row.name, row.builtin, f"{row.codes:,}", *cells]) + " |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
