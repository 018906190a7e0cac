"""One-operator models between Q/DQ, for every operator that a backend table can name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxqat import numerics
from onnxqat.backends.schema import TypeRow
from onnxqat.deployment.base_compiler import MOVES, Array
from onnxqat.graph import inference
from onnxqat.types import QParams, QType

OPSET, IR_VERSION = 13, 8
_BESIDE = "beside_"
IMAGE = (1, 8, 12, 12)
MATRIX = (1, 16)
SEQUENCE = (1, 6, 16)


@dataclasses.dataclass(frozen=True)
class Case:
    """One model.

    Attributes:
        name: as tables write it: the operator, with its mode behind a slash; or operators with ``+`` between, fused.
        shapes: of the data inputs.
        weights: shape and channel axis of a quantized constant, by input.
        constants: float or integer constants that stay as they are, by input.
        attributes: of the first operator.
        then: operators behind it, nothing between.
        opset: the oldest that has the operator.
        positive: inputs are above 0.5.
        outputs: number of outputs.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...] = (IMAGE,)
    weights: Mapping[int, tuple[tuple[int, ...], int]] = dataclasses.field(default_factory=dict)
    constants: Mapping[int, Array] = dataclasses.field(default_factory=dict)
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    then: tuple[str, ...] = ()
    opset: int = OPSET
    positive: bool = False
    outputs: int = 1

    @property
    def op_type(self) -> str:
        """The operator that is asked about."""
        return self.name.partition("+")[0].partition("/")[0]


def _ints(*values: int) -> Array:
    return np.array(values, np.int64)


def _resize(mode: str) -> Case:
    scales = np.array([1, 1, 2, 2], np.float32)
    attributes = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return Case(f"Resize/{mode}", constants={1: np.zeros(0, np.float32), 2: scales}, attributes=attributes)


def _pad(mode: str) -> Case:
    opset = 19 if mode == "wrap" else 13
    return Case(f"Pad/{mode}", constants={1: _ints(0, 0, 1, 1, 0, 0, 1, 1)}, attributes={"mode": mode}, opset=opset)


def _pattern(shape: tuple[int, ...]) -> Array:
    """Every third element chosen."""
    return np.asarray(np.arange(np.prod(shape)).reshape(shape) % 3 == 0)


_CONV = {1: ((8, 8, 3, 3), 0)}
_PADS = {"pads": [1, 1, 1, 1]}
_POOL = {"kernel_shape": [2, 2], "strides": [2, 2]}
_UNARY = (
    "Relu",
    "LeakyRelu",
    "Sigmoid",
    "Tanh",
    "Elu",
    "Selu",
    "Celu",
    "Softplus",
    "Exp",
    "Abs",
    "HardSigmoid",
    "Identity",
)
_BINARY = ("Add", "Sub", "Mul", "Max", "Min")
_REDUCE = ("ReduceMean", "ReduceMax", "ReduceMin")
_AFFINE_16, _AFFINE_8 = (
    {1: np.linspace(0.5, 1.5, n, dtype=np.float32), 2: np.linspace(-1, 1, n, dtype=np.float32)} for n in (16, 8)
)
_CLIP6: dict[int, Array] = {1: np.array(0, np.float32), 2: np.array(6, np.float32)}

BESIDE = Case("Conv", weights=_CONV, attributes=_PADS)
"""Neighbour of an operator in float: a model without any quantizer is another matter for some compilers."""

CASES: tuple[Case, ...] = (
    BESIDE,
    Case("Conv/depthwise", weights={1: ((8, 1, 3, 3), 0)}, attributes=_PADS | {"group": 8}),
    Case("Conv/1d", ((1, 8, 24),), weights={1: ((8, 8, 3), 0)}, attributes={"pads": [1, 1]}),
    Case("Conv+Relu", weights=_CONV, attributes=_PADS, then=("Relu",)),
    Case("Conv+Clip", weights=_CONV, attributes=_PADS, then=("Clip",)),
    Case("Conv+LeakyRelu", weights=_CONV, attributes=_PADS, then=("LeakyRelu",)),
    Case("Conv+HardSwish", weights=_CONV, attributes=_PADS, then=("HardSwish",), opset=14),
    Case("ConvTranspose", weights={1: ((8, 8, 2, 2), 1)}, attributes={"strides": [2, 2]}),
    Case("Gemm", (MATRIX,), weights={1: ((8, 16), 0)}, attributes={"transB": 1}),
    Case("MatMul", (SEQUENCE,), weights={1: ((16, 8), 1)}),
    Case("MatMul/computed", (SEQUENCE, (1, 16, 8))),
    *(Case(op, (IMAGE, IMAGE)) for op in _BINARY),
    Case("Div", (IMAGE, IMAGE), positive=True),
    Case("Concat", (IMAGE, IMAGE), attributes={"axis": 1}),
    Case("MaxPool", attributes=_POOL),
    Case("AveragePool", attributes=_POOL),
    Case("GlobalAveragePool"),
    Case("GlobalMaxPool"),
    *(Case(op, attributes={"axes": [2, 3]}) for op in _REDUCE),
    Case("ReduceSum", constants={1: _ints(2, 3)}),
    *(Case(op) for op in _UNARY),
    Case("Sqrt", positive=True),
    Case("Clip", constants=_CLIP6),
    Case("PRelu", constants={1: np.linspace(0.1, 0.4, 8, dtype=np.float32).reshape(8, 1, 1)}),
    Case("HardSwish", opset=14),
    Case("Gelu", opset=20),
    Case("Mish", opset=18),
    Case("Swish", opset=24),
    Case("Neg"),
    Case("Erf"),
    Case("Log", positive=True),
    Case("Reciprocal", positive=True),
    Case("Sin"),
    Case("Cos"),
    Case("Pow", constants={1: np.array(2, np.float32)}, positive=True),
    Case("Where", (IMAGE, IMAGE), constants={0: _pattern(IMAGE)}),
    Case("Softmax", (SEQUENCE,), attributes={"axis": -1}),
    Case("LogSoftmax", (SEQUENCE,), attributes={"axis": -1}),
    Case("LpNormalization", attributes={"axis": 1}),
    Case("LayerNormalization", (SEQUENCE,), constants=_AFFINE_16, attributes={"axis": -1}, opset=17),
    Case("RMSNormalization", (SEQUENCE,), constants={1: _AFFINE_16[1]}, attributes={"axis": -1}, opset=23),
    Case("InstanceNormalization", constants=_AFFINE_8),
    Case("GroupNormalization", constants=_AFFINE_8, attributes={"num_groups": 2}, opset=21),
    Case("BatchNormalization", constants=_AFFINE_8 | {3: _AFFINE_8[2], 4: _AFFINE_8[1]}),
    _resize("nearest"),
    _resize("linear"),
    _pad("constant"),
    _pad("reflect"),
    _pad("edge"),
    _pad("wrap"),
    Case("DepthToSpace", attributes={"blocksize": 2}),
    Case("SpaceToDepth", attributes={"blocksize": 2}),
    Case("Reshape", constants={1: _ints(1, 4, 2, 144)}),
    Case("Transpose", attributes={"perm": [0, 2, 3, 1]}),
    Case("Flatten"),
    Case("Squeeze", constants={1: _ints(0)}),
    Case("Unsqueeze", ((1, 8, 12),), constants={1: _ints(1)}),
    Case("Slice", constants={1: _ints(1, 1), 2: _ints(9, 9), 3: _ints(2, 3)}),
    Case("Split", attributes={"axis": 1}, outputs=2),
    Case("Gather", constants={1: _ints(0, 2, 5)}, attributes={"axis": 1}),
    Case(
        "GatherElements",
        constants={1: np.flip(np.arange(8).reshape(1, 8, 1, 1), 1) * np.ones((1, 8, 12, 12), np.int64)},
        attributes={"axis": 1},
    ),
    Case("GatherND", constants={1: np.array([[0, 1], [0, 4]], np.int64)}),
    Case("GridSample", (IMAGE, (1, 12, 12, 2)), opset=16),
    Case("CumSum", constants={1: np.array(2, np.int64)}),
    Case("Tile", constants={1: _ints(1, 1, 2, 1)}),
    Case("Expand", ((1, 8, 1, 12),), constants={1: _ints(1, 8, 12, 12)}),
    *(
        Case(
            op,
            ((6, 1, 16),),
            weights={1: ((1, gates * 8, 16), 1), 2: ((1, gates * 8, 8), 1)},
            attributes={"hidden_size": 8},
        )
        for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4))
    ),
    Case("ReverseSequence", ((6, 1, 16),), constants={1: _ints(6)}, attributes={"time_axis": 0, "batch_axis": 1}),
)
"""Every operator that a table of this package has, some of their modes, and fused pairs."""


KEEP_THE_GRID = {*MOVES, "MaxPool", "GlobalMaxPool", "Resize/nearest", "ReduceMax", "ReduceMin"} - {"Resize"}
"""Cases whose output has the parameters of the input, as placement gives it to them."""


def feeds(case: Case, seed: int = 1) -> dict[str, Array]:
    """Inputs of `case`, float32, normal or between 0.5 and 2."""
    rng = np.random.default_rng(seed)
    made = {}
    for i, shape in enumerate(case.shapes):
        values = rng.uniform(0.5, 2, shape) if case.positive else rng.normal(size=shape)
        made[f"x{i}"] = values.astype(np.float32)
    return made


def quantized(
    case: Case,
    act: TypeRow,
    weight: TypeRow,
    bias: TypeRow | None = None,
    stored: Mapping[int, TypeRow] = MappingProxyType({}),
) -> onnx.ModelProto:
    """Deploy form of `case` with a pair on every input and output.

    Args:
        case: which operator.
        act: type of activations.
        weight: type of weights; per channel where it says so.
        bias: type of biases; float constants without one and where it says so, else int32 codes.
        stored: types of float constants that the table quantizes, by input.
    """
    writer = _Writer(case, act, weight)
    ranges = _ranges(case)
    inputs: list[str] = []
    for i in range(len(case.shapes) + len(case.weights) + len(case.constants)):
        if i in case.weights:
            inputs.append(writer.weight(i))
        elif i in case.constants and i in stored:
            inputs.append(writer.stored(f"c{i}", np.asarray(case.constants[i]), stored[i]))
        elif i in case.constants:
            inputs.append(writer.constant(f"c{i}", np.asarray(case.constants[i])))
        else:
            inputs.append(writer.pair(f"x{len([n for n in inputs if n.startswith('x')])}", ranges))
    if case.op_type in ("Conv", "ConvTranspose", "Gemm"):
        inputs.append(writer.bias(stored=bias is not None and bias.dtype != "float"))
    outputs = [f"y{i}" for i in range(case.outputs)]
    if case.then:
        writer.nodes.append(_probed_node(case, inputs, ["inner"]))
        extra = [writer.constant(f"limit{i}", v) for i, v in _CLIP6.items()] if case.then[0] == "Clip" else []
        writer.nodes.append(helper.make_node(case.then[0], ["inner", *extra], outputs, name="then"))
    else:
        writer.nodes.append(_probed_node(case, inputs, outputs))
    for name in outputs:
        if case.name in KEEP_THE_GRID:
            ranges[name] = ranges["x0"]
        writer.pair(name, ranges, f"{name}_out")
    return writer.model([f"{name}_out" for name in outputs])


def _probed_node(case: Case, inputs: list[str], outputs: list[str]) -> onnx.NodeProto:
    return helper.make_node(case.op_type, inputs, outputs, name="probed", **dict(case.attributes))


def _weights(shape: tuple[int, ...]) -> Array:
    values = np.random.default_rng(7).normal(size=shape) / np.sqrt(np.prod(shape[1:]))
    return np.asarray(values, np.float32)


def _ranges(case: Case) -> dict[str, tuple[float, float]]:
    """Ranges of the inputs and outputs, measured in onnxruntime."""
    import onnxruntime

    values, graph = feeds(case), float_graph(case)
    session = onnxruntime.InferenceSession(_model(graph, case.opset).SerializeToString())
    outputs = [value.name for value in graph.output]
    values |= dict(zip(outputs, session.run(outputs, values), strict=True))
    return {n: (float(v.min()), float(v.max())) for n, v in values.items()}


def float_graph(case: Case) -> onnx.GraphProto:
    """Graph of `case` without pairs: inputs ``x0``, ``x1``, outputs ``y0``, ``y1``, the node ``probed``."""
    constants = {f"c{i}": np.asarray(v) for i, v in case.constants.items()}
    constants |= {f"w{i}": _weights(shape) for i, (shape, _) in case.weights.items()}
    values = feeds(case)
    data = iter(values)
    stored = {i: f"w{i}" for i in case.weights} | {i: f"c{i}" for i in case.constants}
    inputs = [stored[i] if i in stored else next(data) for i in range(len(case.shapes) + len(stored))]
    outputs = [f"y{i}" for i in range(case.outputs)]
    nodes = [_probed_node(case, inputs, ["inner"] if case.then else outputs)]
    if case.then:
        limits = {f"limit{i}": np.asarray(v) for i, v in _CLIP6.items()} if case.then[0] == "Clip" else {}
        constants |= limits
        nodes.append(helper.make_node(case.then[0], ["inner", *limits], outputs))
    return helper.make_graph(
        nodes,
        "float",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, v.shape) for n, v in values.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs],
        [numpy_helper.from_array(v, n) for n, v in constants.items()],
    )


def in_float(case: Case, act: TypeRow, weight: TypeRow, bias: TypeRow | None = None) -> onnx.ModelProto:
    """Model of `case` without pairs, and of a quantized convolution that has nothing to do with it.

    Args:
        case: which operator.
        act: type of the activations of the convolution.
        weight: type of its weights.
        bias: type of its bias.
    """
    graph = float_graph(case)
    beside = onnx.compose.add_prefix_graph(quantized(BESIDE, act, weight, bias).graph, _BESIDE)
    for field in ("node", "initializer", "input", "output"):
        getattr(graph, field).extend(getattr(beside, field))
    return inferred(graph, case.opset, case.shapes[0])


def feeds_beside(case: Case) -> dict[str, Array]:
    """Inputs of :func:`in_float`, float32."""
    return feeds(case) | {_BESIDE + name: values for name, values in feeds(BESIDE).items()}


def _model(graph: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)


def inferred(graph: onnx.GraphProto, opset: int, shape: tuple[int, ...] = IMAGE) -> onnx.ModelProto:
    """Model of `graph` with inferred shapes; outputs of which nothing is inferred have `shape`."""
    found = inference.infer_shapes(_model(graph, opset))
    for value in found.graph.output:
        if not value.type.tensor_type.HasField("shape"):  # of an operator that onnx infers nothing for
            value.CopyFrom(helper.make_tensor_value_info(value.name, TensorProto.FLOAT, shape))
    return found


class _Writer:
    def __init__(self, case: Case, act: TypeRow, weight: TypeRow) -> None:
        self.case, self.act, self.weight_type = case, act, weight
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.scales: dict[str, np.ndarray] = {}

    def constant(self, name: str, values: Array) -> str:
        self.constants.append(numpy_helper.from_array(values, name))
        return name

    def _parameters(self, name: str, qparams: QParams) -> list[str]:
        zero = qparams.zero_point.astype(qparams.qtype.storage)
        return [self.constant(f"{name}_scale", qparams.scale), self.constant(f"{name}_zero_point", np.asarray(zero))]

    def pair(self, name: str, ranges: Mapping[str, tuple[float, float]], output: str | None = None) -> str:
        low, high = (np.asarray(v, np.float32) for v in ranges[name])
        qparams = numerics.from_range(low, high, self.act.spec("activation"))
        parameters, made = self._parameters(name, qparams), output or f"{name}_dequantized"
        self.scales["x"] = self.scales.get("x", qparams.scale)
        self.nodes.append(helper.make_node("QuantizeLinear", [name, *parameters], [f"{name}_q"], name=f"{name}_Q"))
        self.nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", *parameters], [made], name=f"{name}_DQ"))
        return made

    def weight(self, index: int) -> str:
        shape, axis = self.case.weights[index]
        name = "w" if index == min(self.case.weights) else f"w{index}"
        values = _weights(shape)
        row = self.weight_type
        channel = axis if row.granularity == "channel" else None
        others = tuple(i for i in range(values.ndim) if channel is None or i != channel)
        # Half of the codes: two products of 64 and 255 stay below 2**15, so that no kernel's sum of them saturates.
        spare = 2 if row.saturates else 1
        low, high = spare * values.min(axis=others), spare * values.max(axis=others)
        qparams = numerics.from_range(low, high, row.spec("weight", channel).but(symmetric=True))
        codes = numerics.quantize(values, qparams).astype(row.dtype)
        parameters = self._parameters(name, qparams)
        self.scales[name] = qparams.scale
        stored = self.constant(f"{name}_quantized", codes)
        extra: dict[str, Any] = {} if channel is None else {"axis": channel}
        self.nodes.append(
            helper.make_node("DequantizeLinear", [stored, *parameters], [name], name=f"{name}_DQ", **extra)
        )
        return name

    def stored(self, name: str, values: Array, row: TypeRow) -> str:
        """A float constant as codes with one scale; with the product of scales where `row` derives it."""
        if row.derive is not None:
            qparams = QParams(
                np.asarray(self.scales["x"] * self.scales["c1"], np.float32),
                np.asarray(0),
                QType("int32", -(2**31), 2**31 - 1),
            )
        else:
            qparams = numerics.from_range(values.min(), values.max(), row.spec("bias"))
        self.scales[name] = qparams.scale
        codes = self.constant(f"{name}_quantized", numerics.quantize(values, qparams).astype(qparams.qtype.storage))
        inputs = [codes, *self._parameters(name, qparams)]
        self.nodes.append(helper.make_node("DequantizeLinear", inputs, [f"{name}_dequantized"], name=f"{name}_DQ"))
        return f"{name}_dequantized"

    def bias(self, *, stored: bool) -> str:
        shape, axis = next(iter(self.case.weights.values()))
        scale = np.asarray(self.scales["x"] * self.scales["w"], np.float32)
        codes = np.arange(shape[axis], dtype=np.int32) * 10
        if not stored:
            return self.constant("b", np.asarray(codes * scale, np.float32))
        inputs = [self.constant("b_quantized", codes), self.constant("b_scale", scale)]
        inputs.append(self.constant("b_zero_point", np.zeros(scale.shape, np.int32)))
        extra: dict[str, Any] = {"axis": 0} if scale.ndim else {}
        self.nodes.append(helper.make_node("DequantizeLinear", inputs, ["b"], name="b_DQ", **extra))
        return "b"

    def model(self, outputs: list[str]) -> onnx.ModelProto:
        inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, v.shape) for n, v in feeds(self.case).items()]
        made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
        graph = helper.make_graph(self.nodes, "probe", inputs, made, self.constants)
        return inferred(graph, self.case.opset, self.case.shapes[0])
