"""Single nodes on constant inputs, for constant subexpressions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir

from onnxqat.graph import query

SHAPES = frozenset({"Identity", "Unsqueeze", "Squeeze", "Transpose", "Reshape", "Flatten", "Slice", "Shape"})
BROADCASTS = frozenset({"Add", "Sub", "Mul", "Div", "Mod", "Neg", "Sqrt", "Reciprocal"})
_Direct: TypeAlias = "Callable[[ir.Node, list[np.ndarray | None]], np.ndarray | None]"
FOLDABLE = SHAPES | BROADCASTS | {"Cast", "Concat", "Gather", "ConstantOfShape", "Expand", "Split", "Tile"}
_COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Where", "And", "Or"})
_FUNCTIONS = frozenset({"Abs", "Exp", "Log", "Sign", "Sigmoid", "Tanh", "Softplus", "Round", "Clip", "Relu", "Softmax"})
_REDUCTIONS = frozenset(f"Reduce{kind}" for kind in ("L1", "L2", "Max", "Mean", "Min", "Sum", "SumSquare"))
_TABLES = frozenset(
    {"ScatterElements", "ScatterND", "GatherElements", "EyeLike", "Trilu", "CumSum", "Range", "Cos", "Sin"}
)
WEIGHTS = _COMPARISONS | _FUNCTIONS | _REDUCTIONS | _TABLES | {"LpNormalization", "MatMul", "Max", "Min", "Pow"}
"""Beyond FOLDABLE, what weights are computed with: norms and standardization of weights, masks, low-rank sums, and tables of
signal processing that a graph builds, as banks of filters from their few values other than 0 and bases of sines."""
LAYERS = frozenset({"Gemm", "LayerNormalization", "Erf", "Gelu"})
"""Beyond WEIGHTS, what learned queries, positions and masks are computed with; a decoder's first layers may read such
tensors alone."""
_BROADCASTS = BROADCASTS | _COMPARISONS | {"Max", "Min", "Pow"}


def is_foldable(node: ir.Node, *, weights: bool = False, layers: bool = False) -> bool:
    """Check whether `node` is an operator that :func:`evaluate` knows, without attribute references.

    Args:
        node: any node.
        weights: also accept :data:`WEIGHTS`, operators that occur in the computation of weights.
        layers: also accept :data:`LAYERS`.
    """
    known = node.op_type in FOLDABLE or (weights and node.op_type in WEIGHTS) or (layers and node.op_type in LAYERS)
    one = len(node.outputs) == 1 or node.op_type == "Split" or _gives_one(node)
    return node.domain == "" and known and one and not query.takes_arguments(node)


def _gives_one(node: ir.Node) -> bool:
    """Check whether the second output of `node` and those behind it are left out or not read."""
    return not any(map(query.is_used, node.outputs[1:]))


def result_elements(node: ir.Node, inputs: list[np.ndarray | None]) -> int:
    """Upper bound of the number of elements of the result, known before anything is computed."""
    arrays = [a for a in inputs if a is not None]
    if node.op_type == "ConstantOfShape":
        return _product(arrays[0])
    if node.op_type == "Expand":
        return _product(arrays[1]) * max(1, arrays[0].size)
    if node.op_type == "Gather":
        axis = int(query.attribute(node, "axis", 0))
        return int(arrays[0].size // max(1, arrays[0].shape[axis]) * arrays[1].size)
    if node.op_type == "Tile":
        return int(arrays[0].size * _product(arrays[1]))
    if node.op_type == "Range":
        start, limit, delta = (float(a.reshape(())) for a in arrays)
        return max(0, math.ceil((limit - start) / delta))
    if node.op_type in ("MatMul", "Gemm"):
        left, right = arrays[:2]
        if node.op_type == "Gemm":
            return int(max(left.shape) * max(right.shape))
        rows, columns = (
            left.size // max(1, left.shape[-1]),
            right.size // max(1, right.shape[-2 if right.ndim > 1 else 0]),
        )
        return int(rows * columns)
    if node.op_type in _BROADCASTS:
        return math.prod(np.broadcast_shapes(*(a.shape for a in arrays)))
    return sum(a.size for a in arrays)


def _product(dims: np.ndarray) -> int:
    return math.prod(max(0, int(d)) for d in dims.reshape(-1))


def evaluate(node: ir.Node, inputs: list[np.ndarray | None], opset: int) -> np.ndarray:
    """The first result of a foldable `node`; float16 and float32 arithmetic is rounded as a runtime rounds it."""
    return results(node, inputs, opset)[0]


def results(node: ir.Node, inputs: list[np.ndarray | None], opset: int) -> list[np.ndarray]:
    """All results of a foldable `node`: the parts of a Split, one of any other."""
    direct = _DIRECT.get(node.op_type)
    found = None if direct is None else direct(node, inputs)
    return _by_reference(node, inputs, opset) if found is None else [found]


def _constant_of_shape(node: ir.Node, inputs: list[np.ndarray | None]) -> np.ndarray | None:
    fill = query.attribute(node, "value", None)
    value = np.zeros(1, np.float32) if fill is None else fill.numpy()
    shape = inputs[0]
    assert shape is not None
    return np.full([int(d) for d in shape.reshape(-1)], value.reshape(-1)[0], value.dtype)


def _concat(node: ir.Node, inputs: list[np.ndarray | None]) -> np.ndarray | None:
    return np.concatenate([a for a in inputs if a is not None], axis=int(query.attribute(node, "axis", 1)))


def _transpose(node: ir.Node, inputs: list[np.ndarray | None]) -> np.ndarray | None:
    data = inputs[0]
    return None if data is None else np.transpose(data, query.attribute(node, "perm", None))


def _reshape(node: ir.Node, inputs: list[np.ndarray | None]) -> np.ndarray | None:
    if len(inputs) < 2 or inputs[0] is None or inputs[1] is None or query.attribute(node, "allowzero", 0):
        return None
    data = inputs[0]
    return data.reshape([data.shape[i] if d == 0 else int(d) for i, d in enumerate(inputs[1])])


def _slice(node: ir.Node, inputs: list[np.ndarray | None]) -> np.ndarray | None:
    data, starts, ends, axes, steps = [*inputs, None, None, None, None][:5]
    if data is None or starts is None or ends is None:
        return None
    axes = np.arange(len(starts)) if axes is None else axes
    steps = np.ones_like(starts) if steps is None else steps
    places = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        places[int(axis)] = slice(int(start), int(end), int(step))  # clamps as ONNX does, backwards too
    return data[tuple(places)]


def _cast(node: ir.Node, inputs: list[np.ndarray | None]) -> np.ndarray | None:
    data, target = inputs[0], ir.DataType(int(query.attribute(node, "to", 0)))
    integers = (ir.DataType.INT32, ir.DataType.INT64)
    return data.astype(target.numpy()) if data is not None and data.dtype.kind == "i" and target in integers else None


def _shape(node: ir.Node, inputs: list[np.ndarray | None]) -> np.ndarray | None:
    data = inputs[0]
    return None if data is None or node.attributes else np.array(data.shape, np.int64)


def _gather(node: ir.Node, inputs: list[np.ndarray | None]) -> np.ndarray | None:
    data, places = inputs
    if data is None or places is None:
        return None
    return np.take(data, places, axis=int(query.attribute(node, "axis", 0)))


def _unsqueeze(node: ir.Node, inputs: list[np.ndarray | None]) -> np.ndarray | None:
    data, axes = [*inputs, None][:2]
    places = query.attribute(node, "axes", axes)  # an input since opset 13
    return None if data is None or places is None else np.expand_dims(data, tuple(int(a) for a in places))


def _integer_arithmetic(operation: np.ufunc) -> _Direct:
    def compute(node: ir.Node, inputs: list[np.ndarray | None]) -> np.ndarray | None:
        left, right = inputs
        if left is None or right is None or left.dtype != right.dtype or left.dtype.kind != "i":
            return None
        return np.asarray(operation(left, right))

    return compute


# What exporters compute sizes and amounts with. A function returns None where it does not cover the node's form. The
# reference implementation knows everything, but its import alone takes 0.1 seconds.
_DIRECT: dict[str, _Direct] = {
    "ConstantOfShape": _constant_of_shape,
    "Concat": _concat,
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Slice": _slice,
    "Cast": _cast,
    "Shape": _shape,
    "Gather": _gather,
    "Unsqueeze": _unsqueeze,
    "Add": _integer_arithmetic(np.add),
    "Sub": _integer_arithmetic(np.subtract),
    "Mul": _integer_arithmetic(np.multiply),
}


def _by_reference(node: ir.Node, inputs: list[np.ndarray | None], opset: int) -> list[np.ndarray]:
    from onnx.reference import ReferenceEvaluator

    feeds = {f"i{i}": a for i, a in enumerate(inputs) if a is not None}
    names = [f"i{i}" if a is not None else "" for i, a in enumerate(inputs)]
    made = [f"y{i}" for i in range(len(node.outputs) if node.op_type == "Split" else 1)]
    proto = onnx.helper.make_node(node.op_type, names, made)
    proto.attribute.extend(ir.to_proto(attribute) for attribute in node.attributes.values())
    graph = onnx.helper.make_graph(
        [proto],
        "one",
        [onnx.helper.make_tensor_value_info(n, ir.DataType.from_numpy(a.dtype), a.shape) for n, a in feeds.items()],
        [onnx.helper.make_tensor_value_info(name, 0, None) for name in made],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    return [np.asarray(array) for array in ReferenceEvaluator(model).run(None, feeds)]
