"""Resolve a backend table over a graph to a :class:`QuantPlan`.

Order: the table's rows say which tensors want parameters; fused chains move an output behind the chain; what is added to
before it is rounded wants none; an output that is only read on another grid takes that one; ties make groups;
pass-through operators spread parameters both ways; fixed parameters beat calibration; biases come last; pairs that
repeat what a compiler carries on go.
Redundant Relu and Clip are decided later, on the resulting scales (:mod:`onnxqat.calibration.resolve`), and so are
limits of shifts (:mod:`onnxqat.calibration.exact.shift_limits`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from onnxqat.analysis import dataflow, residual_streams
from onnxqat.backends import group_rules
from onnxqat.backends.schema import Backend, OpRow
from onnxqat.graph import batchnorm, qdq, query, walk
from onnxqat.placement import (
    biases,
    claims,
    elementwise,
    float_reasons,
    fusion_chains,
    propagation,
    redundant_pairs,
    residual_adds,
    shared_tables,
    tensor_specs,
)
from onnxqat.placement.plan_builder import Consumer, PlanBuilder, TensorPlan
from onnxqat.placement.table_overrides import NodeSelection
from onnxqat.types import (
    Decision,
    Edge,
    QuantPlan,
    SaturatingRange,
    Shared,
    ShiftLimit,
    TensorSpec,
    TieFreeMean,
)

WHOLE = residual_streams.NORMALIZATIONS | {operator for operator, _ in group_rules.OPERATORS.values()}
"""Operators for what is a group where it is written out; in float they read as exact values as its parts would."""


def plan(
    model: ir.Model,
    backend: Backend,
    selection: NodeSelection,
    *,
    mixed_range: Mapping[str, str] | None = None,
    masked: frozenset[str] = frozenset(),
) -> QuantPlan:
    """The plan for the main graph of `model` and the branches of If in it; the prepare passes have run.

    Args:
        model: prepared float model, with types and shapes inferred; it is only read.
        backend: table, user overrides applied.
        selection: nodes that the user took out.
        mixed_range: names of Concat nodes whose inputs have ranges too different for one scale, each with the name of
            the widest input.
        masked: names of tensors that turned out to be masks.
    """
    draft = PlanBuilder(model, backend, selection, mixed_range or {}, masked)
    for graph in draft.graphs:
        for node in graph:
            _visit(draft, node)
    shared_tables.read_quantized(draft)
    residual_adds.leave_bare(draft)
    elementwise.leave_bare(draft)
    propagation.settle(draft)
    for node, row, inputs in draft.sharing:
        propagation.share_row(draft, node, row, inputs)
    if backend.placement == "both":
        propagation.spread(draft)
        propagation.tie_widest(draft)
    propagation.tie_branches(draft)
    propagation.tie_caches(draft, model.graph)
    propagation.follow(draft)
    for scope in walk.scopes(model):
        if not any(scope is graph for graph in draft.graphs):
            _leave_scope(draft, scope)
    edges = [edge for tensor in draft.tensors.values() for edge in _edges(draft, tensor)]
    moved: tuple[str, ...] = ()
    if backend.data_movement == "no_pair":
        edges, moved = redundant_pairs.without_repeats(draft, edges)
    return QuantPlan(
        backend.backend,
        tuple(edges + draft.biases),
        tuple(draft.clips),
        tuple(_useful_ranges(draft)),
        tuple(draft.remarks),
        tuple(draft.float_nodes),
        tuple(draft.shift_limits),
        moved,
        backend.sums == "tie_free",
        tuple(draft.tie_free_means),
    )


# ---------------------------------------------------------------- rows
def _visit(draft: PlanBuilder, node: ir.Node) -> None:
    """Plan one node: float with a reason, or the specs of inputs, outputs and bias, and what they share."""
    if node in draft.fused or qdq.is_of_quantizer(node) or batchnorm.is_kept(node):
        return
    row, key = draft.row(node)
    if row is None:
        _leave_in_float(draft, node, None)
        return
    reason = float_reasons.reason(draft, node, row)
    if reason is not None:
        _leave_in_float(draft, node, reason)
        return
    draft.remarks.extend(float_reasons.without_data(draft, node))
    found = {i: tensor_specs.of_input(draft, node, row, i) for i, _ in enumerate(node.inputs)}
    decisions = {i: decision for i, decision in found.items() if decision is not None}
    for index, decision in decisions.items():
        draft.want(node, index, decision, f"{key} input {index}")
        if row.elementwise:
            draft.flexible.add((str(node.name), index))
    fusion = fusion_chains.Fusion(node.outputs[0], node.outputs[0], ())
    if draft.backend.placement == "both" and row.outputs:
        fusion = _produce(draft, node, row, key)
    if row.meets_ties and draft.backend.sums == "tie_free" and _meets_ties(node):
        sources = tuple(str(value.name) for i, value in enumerate(node.inputs) if value is not None and i in decisions)
        draft.tie_free_means.append(TieFreeMean(str(node.name), sources, str(fusion.output.name)))
    elif row.share is not None:
        draft.sharing.append((node, row, list(decisions)))
    biases.derive(draft, node, row, key)
    draft.shift_limits.extend(_shift_limits(draft, node, fusion))


def _meets_ties(node: ir.Node) -> bool:
    """Check whether a mean of codes may be a tie: with an odd number of values in every window none is."""
    windows = math.prod(query.attribute(node, "kernel_shape", [2]))
    padded = any(query.attribute(node, "pads", [])) or query.attribute(node, "auto_pad", "NOTSET") != "NOTSET"
    return windows % 2 == 0 or (padded and not query.attribute(node, "count_include_pad", 0))


def _leave_in_float(draft: PlanBuilder, node: ir.Node, reason: str | None) -> None:
    if reason is None:
        reason = draft.selection.reason(node) or (draft.fine.get(node) if draft.passes(node) else None)
        reason = reason or f"{draft.backend.backend} has no row for {_kind(draft, node)}"
        if draft.spreads(node) or any(True for _ in dataflow.branches(node)):
            return
    claims.keep_float(draft, node)
    if node in draft.data_nodes:
        draft.float_nodes.append((query.label(node), reason))
        # A compiler would compute it in float together with the layer: pairs in between only cost.
        draft.layers_in_float.update(
            dict.fromkeys(fusion_chains.behind(node, draft.backend).members, query.label(node))
        )


def _kind(draft: PlanBuilder, node: ir.Node) -> str:
    """Operator of `node`, with its mode where the table has rows for other modes."""
    named = any(key.startswith(f"{node.op_type}/") for key in (*draft.backend.ops, *draft.backend.passthrough))
    return f"{node.op_type} of mode {query.mode(node)}" if named and not node.domain else node.op_type


def _leave_scope(draft: PlanBuilder, scope: walk.Scope) -> None:
    """Leave a body or function that placement does not reach in float: its nodes that the table has a row for say why."""
    holder = walk.holder(scope) if isinstance(scope, ir.Graph) else None
    kind = f"the body of {query.label(holder)}" if holder is not None else "a model-local function"
    for node in scope:
        row, _ = draft.row(node)
        if row is not None and not qdq.is_of_quantizer(node):
            reason = draft.selection.reason(node) or f"placement does not reach into {kind} ({scope.name})"
            draft.float_nodes.append((query.label(node), reason))


def _produce(draft: PlanBuilder, node: ir.Node, row: OpRow, key: str) -> fusion_chains.Fusion:
    """Plan the outputs of `node`, behind the activation that is fused to it, and return that fusion."""
    fusion = fusion_chains.behind(node, draft.backend)
    for shorter in (fusion_chains.alone(node), fusion_chains.Fusion(node.outputs[0], node.outputs[0], ())):
        if any(draft.selection.reason(m) for m in fusion.members):
            fusion = shorter
    outputs = list(node.outputs) if not fusion.members else [fusion.output]
    draft.fused.update(fusion.members)
    draft.clips.extend(fusion.redundant)
    for index, value in enumerate(outputs):
        slot = row.output_slot(index)
        if slot is None or slot.use is None or not draft.may_carry_pair(value):
            continue
        if row.float_output and _is_read_in_float(draft, value):
            continue
        if fusion.members and float_reasons.is_last_probability(draft, value):
            continue
        decision = tensor_specs.of_output(draft, node, slot, value, fused=bool(fusion.members))
        rule = f"{key} output" + (
            " behind its activation" if fusion.members != fusion_chains.alone(node).members else ""
        )
        tensor = draft.tensor(value)
        tensor.produced, tensor.slot = (decision, rule), slot
        if row.float_output or row.elementwise:
            draft.float_capable.add(value)
        if fusion.chain is not None and fusion.chain.inner == "pair" and draft.may_carry_pair(fusion.start):
            inner = tensor_specs.of_output(draft, node, slot, fusion.start, fused=False)
            draft.tensor(fusion.start).produced = (inner, f"{key} output in front of its activation, for equal numbers")
    return fusion


def _is_read_in_float(draft: PlanBuilder, value: ir.Value) -> bool:
    """Check whether `value`, behind data movement, leaves the model, or all its readers are nodes in float that need it."""
    if dataflow.leaves_model(value):
        return True  # whatever else reads it
    pending, read = [value], False
    while pending:
        current = pending.pop()
        if current.is_graph_output():
            if not dataflow.leaves_model(current):
                return False  # an If returns it, and what reads that is not known here
            read = True
        for user in current.consumers():
            if draft.spreads(user):
                pending.extend(user.outputs)
            elif user in draft.fine or (user.op_type in WHOLE and draft.row(user)[0] is None):
                read = True
            else:
                return False
    return read


def _shift_limits(draft: PlanBuilder, node: ir.Node, fusion: fusion_chains.Fusion) -> Iterator[ShiftLimit]:
    inputs = tuple("" if value is None else str(value.name) for value in node.inputs)
    inner = fusion.chain is not None and fusion.chain.inner == "pair"
    output = str((fusion.start if inner else fusion.output).name)
    for check in draft.backend.checks:
        if node.op_type in check.ops:
            yield ShiftLimit(str(node.name), check.terms, inputs, output, *check.range)


# ---------------------------------------------------------------- result
def _useful_ranges(draft: PlanBuilder) -> Iterator[SaturatingRange]:
    for name, tensor in draft.tensors.items():
        found = fusion_chains.useful_range(tensor.value) if tensor.primary is not None else None
        if found is not None:
            yield SaturatingRange(name, *found)


def _edges(draft: PlanBuilder, tensor: TensorPlan) -> list[Edge]:
    name, edges = str(tensor.value.name), list[Edge]()
    wanted = {d: rest for d, all_ in tensor.wanted.items() if (rest := [c for c in all_ if c not in tensor.converted])}
    if tensor.produced is None:
        for decision, consumers in wanted.items():
            shared = _shared(draft, name, decision) if decision is tensor.primary else decision
            edges.append(Edge(name, shared, tensor.rules[decision], tuple(consumers)))
        return edges + _converted(draft, tensor)
    produced, rule = tensor.produced
    edges.append(Edge(name, _shared(draft, name, produced), rule))
    for decision, consumers in wanted.items():
        if decision != produced and not propagation.same_grid(produced, decision):
            edges.append(Edge(name, decision, tensor.rules[decision], tuple(consumers)))
        elif isinstance(produced, TensorSpec):
            edges.extend(_edge_inside(draft, tensor, decision, consumers))
    return edges + _converted(draft, tensor)


def _converted(draft: PlanBuilder, tensor: TensorPlan) -> list[Edge]:
    """Consumers that read the grid of a group: a conversion pair behind the tensor's own one."""
    return [
        Edge(str(tensor.value.name), Shared(draft.groups.root(root)), rule, (consumer,))
        for consumer, (root, rule) in tensor.converted.items()
    ]


def _edge_inside(
    draft: PlanBuilder, tensor: TensorPlan, decision: Decision, consumers: list[Consumer]
) -> Iterator[Edge]:
    """Consumers in a branch of an If get a pair there too, with the same parameters: kernels fuse within a graph."""
    producer = tensor.value.producer()
    inside = tuple(c for c in consumers if producer is not None and draft.homes[c[0]] is not producer.graph)
    if inside:
        root = draft.groups.root(str(tensor.value.name))
        yield Edge(str(tensor.value.name), Shared(root), tensor.rules[decision], inside)


def _shared(draft: PlanBuilder, name: str, decision: Decision) -> Decision:
    root = draft.groups.root(name)
    return Shared(root) if root != name else decision
