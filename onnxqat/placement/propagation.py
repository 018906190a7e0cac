"""Parameters that tensors share: by the row of an operator, data movement, branches of If, or readers on one grid."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.analysis import caches, dataflow
from onnxqat.backends.schema import OpRow
from onnxqat.graph import query, walk
from onnxqat.placement import fusion_chains, tensor_specs
from onnxqat.placement.plan_builder import PlanBuilder
from onnxqat.types import Decision, Fixed, Float, QType, Remark, TensorSpec


def settle(draft: PlanBuilder) -> None:
    """Quantize a tensor with its consumers' spec if all of them, also behind data movement, want the same one.

    This avoids a second, requantizing pair, for example between an 8-bit and a 4-bit layer.
    """
    for tensor in draft.tensors.values():
        wanted = _common_consumer_spec(draft, tensor.value) if tensor.produced is not None else None
        if tensor.produced is None or wanted is None or same_grid(tensor.produced[0], wanted):
            continue
        decision: Decision = wanted
        if isinstance(tensor.produced[0], Fixed) and tensor.slot is not None:
            decision = tensor_specs.fixed(draft, tensor.slot, wanted)
        tensor.produced = (decision, f"{tensor.produced[1]}, on its readers' grid")


def _common_consumer_spec(draft: PlanBuilder, value: ir.Value) -> TensorSpec | None:
    """The one spec that all consumers of `value` want, also those behind data movement; None if they differ.

    A consumer that takes any grid counts only where there is no other.
    """
    if not query.reads(value):
        return None
    firm: set[Decision | None] = set()
    flexible: set[Decision | None] = set()
    pending = [value]
    while pending:
        current = pending.pop()
        if current.is_graph_output():
            return None
        for node, index in current.uses():
            consumer = str(node.name), index
            wanted = draft.wants.get(consumer)
            if wanted is None and index == 0 and draft.spreads(node) and draft.moves_float(node):
                pending.extend(v for v in node.outputs if _is_read(v))
            else:
                (flexible if consumer in draft.flexible else firm).add(wanted)
    one, *others = firm or flexible or {None}  # what moves the data may have no reader itself
    return one if isinstance(one, TensorSpec) and not others else None


def follow(draft: PlanBuilder) -> None:
    """Let consumers that take any grid read the tensor on the grid of its own pair, or else of its other consumers."""
    for tensor in draft.tensors.values():
        loose = [(d, c) for d, consumers in tensor.wanted.items() for c in consumers if c in draft.flexible]
        firm = (d for d, consumers in tensor.wanted.items() if any(c not in draft.flexible for c in consumers))
        decision = tensor.produced[0] if tensor.produced is not None else next(firm, None)
        if not isinstance(decision, TensorSpec):
            continue
        for wanted, consumer in loose:
            if wanted == decision or not isinstance(wanted, TensorSpec) or wanted.role != "activation":
                continue
            tensor.wanted[wanted].remove(consumer)
            tensor.wanted.setdefault(decision, []).append(consumer)
            tensor.rules.setdefault(decision, tensor.rules[wanted])
        tensor.wanted = {d: consumers for d, consumers in tensor.wanted.items() if consumers}


def _is_read(value: ir.Value) -> bool:
    """Check whether float `value` has a consumer: a part of a Split may have none."""
    return value.dtype == ir.DataType.FLOAT and (value.is_graph_output() or query.reads(value) > 0)


def share_row(draft: PlanBuilder, node: ir.Node, row: OpRow, inputs: list[int]) -> None:
    """Apply ``share`` of the row of `node`; with ``convert``, an input that cannot share gets a pair of its own."""
    names = {i: str(value.name) for i in inputs if (value := node.inputs[i]) is not None}
    output = str(fusion_chains.behind(node, draft.backend).output.name)
    order = [*([output] if row.share == "io" else []), *names.values()]
    free = [n for n in order if (t := draft.tensors.get(n)) is not None and isinstance(t.primary, TensorSpec)]
    root = (free or order)[0] if row.convert else order[0]
    for other in order:
        if other == root or draft.share(root, other) or (row.convert and other != output):
            continue
        _remark(draft, root, other)
    if row.convert and free:
        for index, name in names.items():
            if name != root and name in draft.tensors and draft.groups.root(name) != draft.groups.root(root):
                rule = f"{node.op_type} reads one grid"
                draft.tensors[name].converted[str(node.name), index] = (root, rule)


def _remark(draft: PlanBuilder, first: str, second: str) -> None:
    a, b = draft.tensors.get(first), draft.tensors.get(second)
    if a is not None and b is not None and isinstance(a.primary, TensorSpec) and isinstance(b.primary, TensorSpec):
        draft.remarks.append(Remark(f"{first!r} and {second!r} differ in type and so cannot share a scale", (), "plan"))


def spread(draft: PlanBuilder) -> None:
    """Spread parameters through data movement, forward in graph order, then backward, until nothing changes."""
    candidates = [n for graph in draft.graphs for n in graph if draft.spreads(n) and draft.moves_float(n)]
    changed = True
    while changed:
        before = len(draft.groups.members()), sum(t.primary is not None for t in draft.tensors.values())
        for node in (*candidates, *reversed(candidates)):
            _spread_node(draft, node)
        changed = before != (len(draft.groups.members()), sum(t.primary is not None for t in draft.tensors.values()))


def _spread_node(draft: PlanBuilder, node: ir.Node) -> None:
    source = node.inputs[0]
    assert source is not None
    inner = draft.tensor(source)
    outs = [draft.tensor(v) for v in node.outputs if draft.may_carry_pair(v)]
    spec = inner.primary or next((t.primary for t in outs if t.primary is not None), None)
    if spec is None or not outs:
        return
    if isinstance(spec, TensorSpec) and spec.role != "activation":
        return
    if inner.produced is None and (str(node.name), 0) not in draft.wants:
        draft.want(node, 0, spec, f"{node.op_type} passes its input's grid on")
    for tensor in outs:
        if tensor.primary is None or tensor.produced is None:
            tensor.produced = (spec, f"{node.op_type} passes its input's grid on")
        if isinstance(spec, TensorSpec) and not draft.share(str(source.name), str(tensor.value.name)):
            _remark(draft, str(source.name), str(tensor.value.name))


def tie_widest(draft: PlanBuilder) -> None:
    """Tie the output of a Concat of mixed ranges to its widest input, whose range is about the same.

    HTP drops the pair in front of the Concat if the output has one too; on a grid of its own, values beyond the
    calibrated range would then get other codes than in the file.
    """
    for graph in draft.graphs:
        for node in graph:
            widest = draft.mixed_range.get(str(node.name))
            if widest is not None:
                draft.share(widest, str(node.outputs[0].name))


def tie_branches(draft: PlanBuilder) -> None:
    """Tie the outputs of an If to those of its branches: a pair behind the If then changes nothing."""
    for graph in draft.graphs:
        for value in walk.outputs(graph):
            for inner in dataflow.returned_by(value):
                if not draft.share(str(value.name), str(inner.name)):
                    _remark(draft, str(value.name), str(inner.name))


def tie_caches(draft: PlanBuilder, graph: ir.Graph) -> None:
    """Tie the cache that a decoder reads to the one that it returns, so that codes may stay there between steps.

    Two grids would round every key and value again in each step, and no runtime could keep codes for both.
    """
    outputs = [str(value.name) for value in graph.outputs]
    for value in graph.inputs:
        present = caches.present_of(str(value.name), outputs) if caches.is_past(str(value.name)) else None
        if present is not None:
            draft.share(str(value.name), present)


def same_grid(produced: Decision, wanted: Decision) -> bool:
    """Check whether a tensor on the produced grid needs no second pair for the wanted one: same type, or float."""
    qtypes: list[QType | None] = [None, None]
    for index, decision in enumerate((produced, wanted)):
        if isinstance(decision, TensorSpec):
            qtypes[index] = decision.qtype
        elif isinstance(decision, Fixed):
            qtypes[index] = decision.qparams.qtype
    return qtypes[0] == qtypes[1] or isinstance(produced, Float)
