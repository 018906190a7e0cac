"""Quantizers in a graph: recognise ``QuantizeLinear -> (Clip) -> DequantizeLinear`` and stored integers, and insert them.

This is the only place that knows how a quantizer is written in ONNX; stripping, write-back, the bridge, deploy form
and validation all read it here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import TypeGuard

import numpy as np
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.graph import batchnorm, build, data_movement, notes, query, read_qparams, walk
from onnxqat.graph.notes import BIAS_GRID as BIAS_GRID
from onnxqat.graph.notes import PRESCRIBED as PRESCRIBED
from onnxqat.graph.notes import QUANT_MAX as QUANT_MAX
from onnxqat.graph.notes import QUANT_MIN as QUANT_MIN
from onnxqat.graph.notes import SCALE_BITS as SCALE_BITS
from onnxqat.graph.quantizer import Quantizer
from onnxqat.graph.read_qparams import NotAQuantizerError
from onnxqat.types import Precision, QParams, QType

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
DOMAINS = ("", "com.microsoft")
# Endings of new tensors, those of onnxruntime's quantizer: its debugger (qdq_loss_debug) finds tensors by them.
UNQUANTIZED, DEQUANTIZED = f"{QUANTIZE}_Input", f"{DEQUANTIZE}_Output"
CODES, STORED_CODES = f"{QUANTIZE}_Output", "quantized"
PRECISION_OPSET = 23  # from here on the type of the scale decides what the quotient is rounded to


def is_quantize(node: ir.Node | None) -> TypeGuard[ir.Node]:
    """Check whether `node` is a QuantizeLinear of ONNX or com.microsoft."""
    return node is not None and node.op_type == QUANTIZE and node.domain in DOMAINS


def is_dequantize(node: ir.Node | None) -> TypeGuard[ir.Node]:
    """Check whether `node` is a DequantizeLinear of ONNX or com.microsoft."""
    return node is not None and node.op_type == DEQUANTIZE and node.domain in DOMAINS


def is_qdq(node: ir.Node | None) -> TypeGuard[ir.Node]:
    """Check whether `node` is a QuantizeLinear or a DequantizeLinear of ONNX or com.microsoft."""
    return is_quantize(node) or is_dequantize(node)


def is_of_quantizer(node: ir.Node) -> bool:
    """Check whether `node` is part of a quantizer: QuantizeLinear, DequantizeLinear or a Clip between the two."""
    return is_qdq(node) or (node.op_type == "Clip" and is_quantize(query.producer(node.inputs[0])))


def is_quantized(model: ir.Model) -> bool:
    """Check whether any scope holds a QuantizeLinear or DequantizeLinear."""
    return any(map(is_qdq, walk.nodes(model)))


def quantizers(model: ir.Model, *, every: bool = False) -> list[Quantizer]:
    """All quantizers with constant parameters, in graph order, roles and derived biases resolved.

    Left out, and so seen as ordinary operators: dynamic scales, float8 that does not saturate, a QuantizeLinear whose
    codes are used by something else than DequantizeLinear.

    Args:
        model: the model.
        every: whether blocked scales, float8 and float4 grids, and stored integers behind a Clip are among them. The
            bridge trains those; passes and reports know integer grids per tensor and per channel.
    """
    found = [
        q
        for scope in walk.scopes(model)
        for q in _in_scope(scope, query.opset(model, scope))
        if every or (q.qparams.scheme.is_integer and not (q.stored and q.clip))
    ]
    for q in found:
        _resolve_role(q)
    readable = data_movement.carried(found)
    for q in found:
        _resolve_sources(q, readable)
    return found


def by_output(found: Iterable[Quantizer]) -> dict[int, Quantizer]:
    """Quantizers by the identity of each dequantized value."""
    return {id(value): q for q in found for value in q.outputs}


def _in_scope(scope: walk.Scope, opset: int) -> Iterator[Quantizer]:
    for node in scope:
        if is_quantize(node):
            pair = _match_pair(node, opset)
        elif is_dequantize(node) and not is_quantize(query.producer(node.inputs[0])):
            pair = _match_stored(node)
        else:
            continue
        if pair is not None:
            yield pair


def _match_pair(quantize: ir.Node, opset: int) -> Quantizer | None:
    """Return the quantizer that begins at `quantize`; None if its readers do not read codes by the same qparams."""
    codes = quantize.outputs[0]
    clip: ir.Node | None = None
    users = codes.consumers()
    if len(users) == 1 and users[0].op_type == "Clip" and users[0].domain == "" and not codes.is_graph_output():
        clip, codes = users[0], users[0].outputs[0]
        users = codes.consumers()
    if not users or codes.is_graph_output() or not all(is_dequantize(n) for n in users):
        return None
    qparams = _qparams(quantize, clip)
    if qparams is None or quantize.inputs[0] is None or quantize.inputs[0].dtype is ir.DataType.INT32:
        return None
    for user in users:
        other = _qparams(user, clip)
        if other is None or not other.same(qparams):
            return None
    precision = _precision(quantize, opset)
    if precision is None or not query.attribute(quantize, "saturate", 1):
        return None
    qparams = dataclasses.replace(qparams, precision=precision)
    outputs = tuple(n.outputs[0] for n in users)
    return Quantizer(quantize.inputs[0], outputs, quantize, clip, tuple(users), qparams)


def _match_stored(dequantize: ir.Node) -> Quantizer | None:
    """Constant codes in front of `dequantize`, with or without a Clip that only it reads (brevitas writes one)."""
    clip, source = query.producer(dequantize.inputs[0]), dequantize.inputs[0]
    if (
        clip is not None
        and clip.op_type == "Clip"
        and clip.domain == ""
        and clip.outputs[0].consumers() == (dequantize,)
    ):
        source = None if clip.outputs[0].is_graph_output() else clip.inputs[0]
    else:
        clip = None
    if source is None or query.constant_tensor(source) is None:
        return None
    qparams = _qparams(dequantize, clip)
    if qparams is None:
        return None
    qparams = qparams if clip else notes.grid(dequantize, qparams)
    return Quantizer(source, (dequantize.outputs[0],), None, clip, (dequantize,), qparams)


def _precision(quantize: ir.Node, opset: int) -> Precision | None:
    """Type that x / scale is rounded to: float32, from version 23 on the `precision` attribute or the scale's type."""
    if quantize.domain or (quantize.version or opset) < PRECISION_OPSET:
        return "float32"
    scale = quantize.inputs[1]
    stated = int(query.attribute(quantize, "precision", 0))
    kind = None if scale is None else scale.dtype
    if stated:
        kind = ir.DataType(stated)
    if kind is ir.DataType.FLOAT16:
        return "float16"
    if kind is ir.DataType.BFLOAT16:
        return "bfloat16"
    return "float32" if kind in (ir.DataType.FLOAT, ir.DataType.FLOAT8E8M0) else None


def _qparams(node: ir.Node, clip: ir.Node | None) -> QParams | None:
    """The parameters of `node`; None where no quantizer stands for it."""
    try:
        return read_qparams.read(node, clip)
    except NotAQuantizerError:
        return None


BIASED = ("Conv", "ConvTranspose", "Gemm", "LayerNormalization", "InstanceNormalization")
"""Operators whose third input has the product of the other two inputs' scales where it is stored as int32."""


def _resolve_role(q: Quantizer) -> None:
    maker = q.input.producer()
    computed = maker is not None and maker.metadata_props.get(batchnorm.KEPT) in batchnorm.PARTS  # see computed_fold
    if q.stored or computed or query.constant_tensor(q.input) is not None:
        q.role = "bias" if any(True for _ in _layers_of_bias(q)) else "weight"


def _layers_of_bias(q: Quantizer) -> Iterator[ir.Node]:
    for node, index in q.uses:
        if index == 2 and node.op_type in BIASED:
            yield node


def _resolve_sources(q: Quantizer, readable: dict[int, Quantizer]) -> None:
    for node in _layers_of_bias(q) if q.role == "bias" and q.qparams.qtype.storage == "int32" else ():
        activation, weight = (readable.get(id(node.inputs[i])) for i in (0, 1))
        if activation is None or weight is None or not _has_accumulator(activation, weight):
            continue
        if _is_product(q.qparams, activation.qparams, weight.qparams):
            q.derived_from = (activation, weight)


def _has_accumulator(*sources: Quantizer | None) -> bool:
    """Check whether products of the two grids are integers times one scale per channel."""
    return all(q is None or q.qparams.scheme.is_integer for q in sources)


def _is_product(bias: QParams, activation: QParams, weight: QParams) -> bool:
    sizes = bias.scale.size, weight.scale.size
    if activation.scale.ndim or bias.zero_point.any() or (1 not in sizes and sizes[0] != sizes[1]):
        return False
    product = np.broadcast_to(
        activation.scale * weight.scale, np.broadcast_shapes(bias.scale.shape, weight.scale.shape)
    )
    return bool(np.allclose(product, bias.scale, rtol=1e-6, atol=0.0))


def snapped_biases(model: ir.Model, found: Iterable[Quantizer]) -> Iterator[tuple[ir.Node, Quantizer, Quantizer]]:
    """Nodes whose float bias is kept on the accumulator's grid, with those of `found` for activation and weight."""
    readable = data_movement.carried(list(found))
    for node in walk.nodes(model):
        if BIAS_GRID not in node.metadata_props or len(node.inputs) < 3:
            continue
        bias = query.constant_tensor(node.inputs[2])
        activation, weight = (readable.get(id(value)) for value in node.inputs[:2])
        if (
            activation is not None
            and weight is not None
            and bias is not None
            and _has_accumulator(activation, weight)
            and notes.has_bias_on(node, accumulator(activation.qparams, weight.qparams, bias.size))
        ):
            yield node, activation, weight


INT32 = QType("int32", -(2**31), 2**31 - 1)


def accumulator(activation: QParams, weight: QParams, channels: int) -> QParams:
    """int32 grid of a bias with `channels` values: the float32 product of a per-tensor and a weight scale."""
    scale = numerics.bias_scale(activation.scale, weight.scale)
    axis = 0 if scale.ndim else None
    if scale.ndim and scale.shape != (channels,):
        scale = np.broadcast_to(scale, (channels,)).copy()
    return QParams(scale, np.zeros(scale.shape, np.int64), INT32, axis)


@dataclasses.dataclass(frozen=True)
class Parameters:
    """The scale and zero point constants of a quantizer; two quantizers that hold the same values share them."""

    scale: ir.Value
    zero_point: ir.Value


def make_parameters(scope: walk.Scope, names: build.Names, tensor: str, qparams: QParams) -> Parameters:
    """Constants ``<tensor>_scale`` (float32) and ``<tensor>_zero_point`` (storage type), scalar when per tensor."""
    dtype = ir.DataType[qparams.qtype.storage.upper()]
    scale = build.constant(scope, names.fresh(f"{tensor}_scale"), qparams.scale)
    zero_point = build.constant(scope, names.fresh(f"{tensor}_zero_point"), qparams.zero_point, dtype)
    return Parameters(scale, zero_point)


def _axis_attributes(qparams: QParams) -> dict[str, int]:
    axis = {} if qparams.axis is None else {"axis": qparams.axis}
    return axis | ({"block_size": qparams.block_size} if qparams.block_size else {})


def insert_pair(
    value: ir.Value,
    parameters: Parameters,
    qparams: QParams,
    names: build.Names,
    stamp: dict[str, str],
    *,
    scope: walk.Scope,
    after: ir.Node | None = None,
    before: ir.Node | None = None,
    base: str | None = None,
) -> ir.Value:
    """Insert Q, Clip on a narrow grid, and DQ behind `value`; no consumer is rewired.

    Args:
        value: the float value.
        parameters: scale and zero point constants of `scope`.
        qparams: what they hold.
        names: fresh names.
        stamp: metadata for the nodes.
        scope: the scope to insert into.
        after: node to insert behind.
        before: node to insert in front of, where `after` is None; with neither, the pair is appended.
        base: what the new names start with; the value's name by default.

    Returns:
        The dequantized value.
    """
    base, dtype = base or str(value.name), ir.DataType[qparams.qtype.storage.upper()]
    axis = _axis_attributes(qparams)
    inputs = [parameters.scale, parameters.zero_point]

    def make(
        op: str, first: ir.Value, suffix: str, out: ir.DataType, rest: list[ir.Value], attributes: dict[str, int]
    ) -> ir.Node:
        return build.node(
            op,
            [first, *rest],
            [names.fresh(f"{base}_{suffix}")],
            attributes,
            dtype=out,
            shape=value.shape,
            name=names.fresh(f"{base}_{op}"),
            stamp=stamp,
        )

    codes = CODES if query.constant_tensor(value) is None else STORED_CODES
    chain = [make(QUANTIZE, value, codes, dtype, inputs, axis)]
    if qparams.qtype.needs_clip:
        bounds = [
            build.constant(scope, names.fresh(f"{base}_{end}"), np.asarray(code), dtype)
            for end, code in (("quant_min", qparams.qtype.quant_min), ("quant_max", qparams.qtype.quant_max))
        ]
        chain.append(make("Clip", chain[-1].outputs[0], "clipped", dtype, bounds, {}))
    chain.append(make(DEQUANTIZE, chain[-1].outputs[0], DEQUANTIZED, ir.DataType.FLOAT, inputs, axis))
    if after is not None:
        scope.insert_after(after, chain)
    elif before is not None:
        scope.insert_before(before, chain)
    else:
        scope.extend(chain)
    return chain[-1].outputs[0]


def insert_stored(
    source: ir.Value,
    codes: np.ndarray,
    parameters: Parameters,
    qparams: QParams,
    names: build.Names,
    stamp: dict[str, str],
    *,
    scope: walk.Scope,
    before: ir.Node,
) -> ir.Value:
    """Insert integer constant ``<source>_quantized`` and a DQ (deploy form of a constant); no consumer is rewired.

    Returns:
        The dequantized value, of the shape of `codes`.
    """
    base, dtype = str(source.name), ir.DataType[qparams.qtype.storage.upper()]
    stored = build.constant(scope, names.fresh(f"{base}_{STORED_CODES}"), codes, dtype, before=before)
    dequantize = build.node(
        DEQUANTIZE,
        [stored, parameters.scale, parameters.zero_point],
        [names.fresh(f"{base}_{DEQUANTIZED}")],
        _axis_attributes(qparams),
        dtype=ir.DataType.FLOAT,
        shape=ir.Shape(codes.shape),
        name=names.fresh(f"{base}_{DEQUANTIZE}"),
        stamp=stamp,
    )
    scope.insert_before(before, dequantize)
    return dequantize.outputs[0]
