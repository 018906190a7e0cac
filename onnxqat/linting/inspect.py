"""Summary of an ONNX file: inputs and outputs, operators, constants, work, and degree of quantization."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterator
from typing import ClassVar

import onnx_ir as ir

from onnxqat.displayed import Displayed
from onnxqat.graph import io, qdq, quantized_forms, query, scale_defects, shapes, walk
from onnxqat.graph.layers import LAYERS
from onnxqat.graph.quantizer import Quantizer
from onnxqat.integer_functions import calls
from onnxqat.linting.explain import granularity_text, grid_text
from onnxqat.runtime import broken_model

INTEGER = frozenset({"ConvInteger", "MatMulInteger", "MatMulNBits"})
"""Operators that compute on codes beside those of a quantized form."""


@dataclasses.dataclass(frozen=True)
class Port:
    """An input or output: its name, element type and dimensions; an unknown one is ``?``, an unknown rank None."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None


@dataclasses.dataclass(frozen=True)
class Operator:
    """All nodes of one operator.

    Attributes:
        op_type: with its domain, where that is not ONNX's own.
        nodes: their number in all scopes.
        quantized: those in front of which a DequantizeLinear stands.
        macs: their multiplications with additions for one sample; None where a shape is unknown or it has none.
    """

    op_type: str
    nodes: int
    quantized: int
    macs: int | None


@dataclasses.dataclass(frozen=True)
class Constants:
    """All initializers and Constant nodes of one element type: how many tensors, elements and bytes."""

    dtype: str
    tensors: int
    elements: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Grid:
    """All quantizers of one role, grid and granularity."""

    role: str
    grid: str
    granularity: str
    quantizers: int


@dataclasses.dataclass(frozen=True)
class Inspection(Displayed):
    """Summary of a file.

    Attributes:
        model: path of the file, or ``the model``.
        form: ``float``; ``QDQ, weights as float`` (train form); ``QDQ, weights as integers`` (deploy form); ``QDQ``;
            ``QOperator`` (operators on codes); ``quantized while it runs``; ``quantizers of`` a vendor's domain;
            ``integer operators``.
        producer: name and version of the tool that wrote it.
        ir_version: of the file.
        opsets: of each domain.
        inputs, outputs: those of the main graph, without constants.
        operators: most frequent first, Q/DQ and Constant left out.
        constants: most bytes first.
        grids: of its quantizers.
        scopes: graphs within the main graph, and model-local functions.
        metadata: its keys and values.
        defects: scales that are no steps: negative, 0, NaN or infinite.
    """

    displayed_by: ClassVar[str] = "onnxqat.report.build_inspect:from_inspect"

    model: str
    form: str
    producer: str
    ir_version: int
    opsets: dict[str, int]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    operators: tuple[Operator, ...]
    constants: tuple[Constants, ...]
    grids: tuple[Grid, ...]
    scopes: int
    metadata: dict[str, str]
    defects: tuple[str, ...] = ()

    @property
    def macs(self) -> int:
        """Multiplications with additions of all operators whose shapes are known, for one sample."""
        return sum(operator.macs or 0 for operator in self.operators)


@broken_model.guard("model")
def inspect(model: io.ModelSource) -> Inspection:
    """Describe any ONNX file, float or quantized.

    Args:
        model: path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph; it is not changed.

    Raises:
        ModelError: everything that :func:`onnxqat.graph.io.load` raises.
    """
    loaded = io.load(model).clone()
    quantizers = qdq.quantizers(calls.as_pairs(loaded), every=True)
    shapes.mend(loaded)
    shapes.infer(loaded)
    graph = loaded.graph
    return Inspection(
        model=io.name_of(model),
        form=_form(loaded, quantizers),
        producer=" ".join(t for t in (loaded.producer_name, loaded.producer_version) if t),
        ir_version=loaded.ir_version,
        opsets={domain or "ai.onnx": version for domain, version in loaded.opset_imports.items()},
        inputs=tuple(_port(v) for v in graph.inputs if v.name not in graph.initializers),
        outputs=tuple(map(_port, graph.outputs)),
        operators=tuple(_operators(loaded)),
        constants=tuple(_constants(loaded)),
        grids=tuple(_grids(quantizers)),
        scopes=sum(1 for _ in walk.scopes(loaded)) - 1,
        metadata={str(key): str(value) for key, value in loaded.metadata_props.items()},
        defects=tuple(scale_defects.defects(loaded)),
    )


def _form(model: ir.Model, quantizers: list[Quantizer]) -> str:
    form = quantized_forms.form_of(model)
    if form is None:
        integer = any(node.op_type in INTEGER for node in walk.nodes(model))
        return "integer operators" if integer else "float"
    if form.kind == "vendor":
        domain = form.operators[0].rpartition(".")[0]
        return f"quantizers of {domain}" + (f" ({form.tool})" if form.tool else "")
    if form.kind != "qdq":
        return "QOperator" if form.kind == "qoperator" else "quantized while it runs"
    weights = {q.stored for q in quantizers if q.role == "weight"}
    if len(weights) != 1:
        return "QDQ"
    return f"QDQ, weights as {'integers' if weights.pop() else 'float'}"


def _port(value: ir.Value) -> Port:
    dtype = value.dtype.name.lower() if value.dtype is not None else "?"
    shape = value.shape
    dims = None if shape is None else tuple(d if isinstance(d, int) else (d.value or "?") for d in shape)
    return Port(str(value.name), dtype, dims)


def _operators(model: ir.Model) -> Iterator[Operator]:
    found: dict[str, list[ir.Node]] = {}
    for node in walk.nodes(model):
        if not (qdq.is_qdq(node) or (node.op_type == "Constant" and not node.domain)):
            found.setdefault(f"{node.domain}.{node.op_type}" if node.domain else node.op_type, []).append(node)
    for name, nodes in sorted(found.items(), key=lambda item: (-len(item[1]), item[0])):
        quantized = sum(any(qdq.is_dequantize(query.producer(v)) for v in n.inputs) for n in nodes)
        known = [m for m in map(macs, nodes) if m is not None]
        yield Operator(name, len(nodes), quantized, sum(known) if known else None)


def macs(node: ir.Node) -> int | None:
    """Multiplications with additions of a convolution or matrix product for one sample; None for other nodes.

    A dimension that is not fixed counts as 1. None as well where a shape is unknown.
    """
    if node.domain or len(node.inputs) < 2 or node.op_type not in LAYERS:
        return None
    sizes = [_sizes(v) for v in (node.inputs[0], node.inputs[1], node.outputs[0])]
    x, weight, y = sizes
    if x is None or weight is None or y is None or not x or not weight:
        return None
    if node.op_type == "Conv":
        return math.prod(y) * math.prod(weight[1:])
    if node.op_type == "ConvTranspose":
        return math.prod(x) * math.prod(weight[1:])
    if node.op_type == "Gemm" and len(x) == 1:  # onnxruntime takes it for a row, and for a column with transA
        return math.prod(y) * (1 if query.attribute(node, "transA", 0) else x[0])
    if node.op_type == "Gemm":
        return math.prod(y) * x[0 if query.attribute(node, "transA", 0) else 1]
    return math.prod(y) * x[-1]


def _sizes(value: ir.Value | None) -> tuple[int, ...] | None:
    """Dimensions; those that are not fixed are 1."""
    if value is None or value.shape is None:
        return None
    return tuple(d if isinstance(d, int) else 1 for d in value.shape)


def _constants(model: ir.Model) -> Iterator[Constants]:
    found: dict[str, list[ir.TensorProtocol]] = {}
    held = [v.const_value for graph in model.graphs() for v in graph.initializers.values()]
    held += [query.constant_tensor(n.outputs[0]) for n in walk.nodes(model) if n.op_type == "Constant" and not n.domain]
    for tensor in held:
        if tensor is not None:
            found.setdefault(tensor.dtype.name.lower(), []).append(tensor)
    for dtype, tensors in sorted(found.items(), key=lambda item: -sum(t.nbytes for t in item[1])):
        yield Constants(dtype, len(tensors), sum(t.size for t in tensors), sum(t.nbytes for t in tensors))


def _grids(quantizers: list[Quantizer]) -> Iterator[Grid]:
    keys = [(q.role, grid_text(q.qparams), granularity_text(q.qparams)) for q in quantizers]
    yield from (Grid(*key, count) for key, count in sorted(collections.Counter(keys).items()))
