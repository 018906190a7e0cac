"""Pairs of a QDQ file: place, grid, scale and rule; and the reasons why nodes compute in float."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from onnxqat import discover
from onnxqat.analysis import dataflow
from onnxqat.backends import schema
from onnxqat.displayed import Displayed
from onnxqat.graph import build, io, qdq, quantized_forms, query
from onnxqat.graph.quantizer import Quantizer
from onnxqat.integer_functions import calls
from onnxqat.linting import joins
from onnxqat.linting.comparison import compared
from onnxqat.linting.context import LintContext, tensor_of
from onnxqat.linting.lint import opened
from onnxqat.ops import operators as ops
from onnxqat.runtime import broken_model
from onnxqat.types import Derived, QParams


@dataclasses.dataclass(frozen=True)
class Pair:
    """One quantizer.

    Attributes:
        tensor: the float tensor.
        role: ``activation``, ``weight`` or ``bias``.
        grid: type and width, such as ``int8, 7 bits``.
        granularity: ``tensor``, ``channel, axis 0`` or ``blocks of 32, axis 1``.
        scale: smallest and largest scale.
        zero_point: smallest and largest zero point.
        maker: the node that computes the tensor; empty for inputs and constants.
        readers: the nodes that read it quantized.
        rule: the rule that placed it, where the file says so.
        wanted: the rule by which the backend's table wants it; empty where it does not, None without a backend.
    """

    tensor: str
    role: str
    grid: str
    granularity: str
    scale: tuple[float, float]
    zero_point: tuple[int, int]
    maker: str
    readers: tuple[str, ...]
    rule: str
    wanted: str | None


@dataclasses.dataclass(frozen=True)
class FloatNode:
    """A node that does not compute on quantized inputs alone, and why."""

    node: str
    op_type: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Explanation(Displayed):
    """Quantizers and float nodes of a file.

    Attributes:
        model: path of the file, or ``the model``.
        backend: whose rules it was compared with; None without.
        opset: of the main graph.
        pairs: all quantizers, or those around one node, in graph order.
        float_nodes: nodes that compute in float, or the one asked for.
        joins: branches of Concats, with the cost of one grid for all of them and of a requantization of each.
    """

    displayed_by: ClassVar[str] = "onnxqat.report.build_explain:from_explain"

    model: str
    backend: str | None
    opset: int
    pairs: tuple[Pair, ...]
    float_nodes: tuple[FloatNode, ...]
    joins: tuple[joins.Branch, ...] = ()


@broken_model.guard("model")
def explain(model: io.ModelSource, backend: str | None = None, *, node: str | None = None) -> Explanation:
    """Describe the quantizers of a QDQ file.

    Args:
        model: path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph; it is not changed.
        backend: name of a backend table, or path of one: say which of its rules wants each pair, and why it leaves
            nodes in float.
        node: name of a node or tensor; only what is around it.

    Raises:
        ModelError: everything that :func:`onnxqat.graph.io.load` raises.
        BackendError: ``backend-unknown``, ``backend-table``.
        UsageError: ``name-unknown``: there is no node or tensor called `node`.
    """
    table = schema.load(backend) if backend is not None else None
    file = opened(calls.as_pairs(io.load(model)), table)
    pairs, floats, joined = list(_pairs(file)), list(_float_nodes(file, node)), list(joins.of_file(file))
    if node is not None:
        _check_name(file, node)
        pairs = [p for p in pairs if node in (p.tensor, p.maker, *p.readers)]
        floats = [f for f in floats if f.node == node]
        joined = [j for j in joined if node in (j.node, j.tensor)]
    name = io.name_of(model)
    backend_name = table.backend if table is not None else None
    return Explanation(name, backend_name, query.opset(file.model), tuple(pairs), tuple(floats), tuple(joined))


def _check_name(file: LintContext, name: str) -> None:
    known = {query.label(n) for n in file.nodes} | {tensor_of(q) for q in file.quantizers}
    if name not in known:
        raise discover.unknown("node", name, sorted(known))


def grid_text(qparams: QParams) -> str:
    """Type and width of a grid, such as ``int8, 7 bits``."""
    qtype = qparams.qtype
    return qtype.storage if not qtype.needs_clip else f"{qtype.storage}, {qtype.quant_min}..{qtype.quant_max}"


def granularity_text(qparams: QParams) -> str:
    """Return the granularity of the scales in words: ``tensor``, ``channel, axis 0`` or ``blocks of 32, axis 1``."""
    if qparams.block_size:
        return f"blocks of {qparams.block_size}, axis {qparams.axis}"
    return "tensor" if qparams.axis is None else f"channel, axis {qparams.axis}"


def _pairs(file: LintContext) -> Iterator[Pair]:
    wanted = _rules_by_quantizer(file)
    for quantizer in file.quantizers:
        scale, zero = np.asarray(quantizer.qparams.scale), np.asarray(quantizer.qparams.zero_point)
        maker = None if quantizer.stored else quantizer.input.producer()
        maker = None if maker is None or maker.op_type == "Constant" else maker
        readers = dict.fromkeys(map(query.label, quantizer.readers))
        yield Pair(
            tensor=tensor_of(quantizer),
            role=quantizer.role,
            grid=grid_text(quantizer.qparams),
            granularity=granularity_text(quantizer.qparams),
            scale=(float(scale.min()), float(scale.max())) if scale.size else (0.0, 0.0),
            zero_point=(int(zero.min()), int(zero.max())) if zero.size else (0, 0),
            maker="" if maker is None else query.label(maker),
            readers=tuple(readers),
            rule=next((r for n in quantizer.nodes if (r := n.metadata_props.get(build.RULE))), ""),
            wanted=None if file.target is None else wanted.get(id(quantizer), ""),
        )


def _rules_by_quantizer(file: LintContext) -> dict[int, str]:
    """The rule by which the table wants each quantizer, by the quantizer's identity."""
    found: dict[int, str] = {}
    for place in compared(file):
        for quantizer in place.present:
            found.setdefault(id(quantizer), place.edge.rule)
    target = file.target
    for edge in () if target is None else target.plan.edges:
        derived = target is not None and isinstance(edge.decision, Derived) and edge.consumers
        node = target.original(edge.consumers[0][0]) if target is not None and derived and edge.consumers else None
        bias = None if node is None else file.reading(node, 2)
        if bias is not None and bias.role == "bias":
            found.setdefault(id(bias), edge.rule)
    for clip in () if target is None else target.plan.redundant_clips:
        for quantizer in file.named(clip.interior):
            found.setdefault(id(quantizer), "activation that the quantizer behind does not repeat")
    return found


def _float_nodes(file: LintContext, asked: str | None = None) -> Iterator[FloatNode]:
    """Nodes that compute data in float; of those that placement passes by, the one that is `asked` for alone."""
    plain = file.plain
    data = frozenset[ir.Node]() if plain is None else dataflow.data_nodes(plain.model.graph)
    reached = () if plain is None else tuple(dataflow.reached_graphs(plain.model.graph))
    for node in file.nodes:
        if qdq.is_qdq(node) or file.of_node(node) is not None:
            continue
        copy = None if plain is None else plain.node(node)
        if plain is None or copy is None or quantized_forms.is_integer_operator(node):
            continue
        reason = ""
        if copy in data or not any(copy.graph is graph for graph in reached):
            reason = _reason(file, node)
        elif query.label(node) == asked:
            reason = dataflow.NOT_DATA
        if reason:
            yield FloatNode(query.label(node), node.op_type, reason)


def _reason(file: LintContext, node: ir.Node) -> str:
    """Why `node` does not compute on quantized inputs; empty where it does."""
    if calls.FUNCTION in node.metadata_props:
        return ""  # a call computes on codes, and its weights are whole numbers in the file
    stated = node.metadata_props.get(build.LEFT_FLOAT, "")
    planned = "" if file.target is None else file.target.reasons.get(id(node), "")
    copy = None if file.plain is None else file.plain.node(node)
    if file.target is not None and copy is not None and copy.name in file.target.fused:
        return ""
    if planned or stated:
        return planned or stated
    row = ops.of(node)
    for index, value in enumerate(node.inputs):
        if value is None or value.dtype not in query.FLOATS or file.making(value) is not None:
            continue
        if row is not None and row.role(index) in ("parameter", "bias"):
            continue
        return _why_float(file, node, value)
    return ""


def _why_float(file: LintContext, node: ir.Node, value: ir.Value) -> str:
    maker = value.producer()
    if maker is not None and any(_reads_pair(file, maker)) and any(map(file.on, node.outputs)):
        return f"it reads {value.name!r} straight from {query.label(maker)}: one kernel where the target fuses them"
    return f"{value.name!r} carries no pair"


def _reads_pair(file: LintContext, node: ir.Node) -> Iterator[Quantizer]:
    yield from (q for i, _ in enumerate(node.inputs) if (q := file.reading(node, i)) is not None)
