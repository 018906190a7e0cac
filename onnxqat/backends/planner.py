"""Resolve a backend table over a graph to a :class:`QuantPlan`.

Order: the table's rows say which tensors want parameters; fused chains move an output behind the chain; an output that
is only read on another grid takes that one; ties make groups; pass-through operators spread parameters both ways; fixed
parameters beat calibration; biases come last.
Redundant Relu and Clip are decided later, on the resulting scales (:mod:`onnxqat.calibration.resolve`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.backends import chains, kept, normalizations, regions
from onnxqat.backends.groups import Groups
from onnxqat.backends.schema import Backend, OpRow, Slot
from onnxqat.backends.selection import Selection
from onnxqat.graph import qdq, query, walk
from onnxqat.ops import _base as ops
from onnxqat.types import (
    Decision,
    Derived,
    Edge,
    Fixed,
    Float,
    QParams,
    QType,
    QuantPlan,
    RedundantClip,
    Remark,
    Role,
    Shared,
    TensorSpec,
    UsefulRange,
)

Consumer = tuple[str, int]
LARGEST_CONSTANT = 1e9  # larger constants are masks (-inf or the lowest float), never data


def plan(
    model: ir.Model,
    backend: Backend,
    selection: Selection,
    *,
    mixed_range: frozenset[str] = frozenset(),
) -> QuantPlan:
    """The plan for the main graph of `model` and the branches of If in it; the prepare passes have run.

    Args:
        model: prepared float model, with types and shapes inferred; it is only read.
        backend: table, user overrides applied.
        selection: nodes that the user took out.
        mixed_range: names of Concat nodes whose inputs have ranges too different for one scale.
    """
    return _Planner(model, backend, selection, mixed_range).run()


@dataclasses.dataclass
class _Tensor:
    """What is known of one tensor while planning."""

    value: ir.Value
    produced: tuple[Decision, str] | None = None
    slot: Slot | None = None
    wanted: dict[Decision, list[Consumer]] = dataclasses.field(default_factory=dict)
    rules: dict[Decision, str] = dataclasses.field(default_factory=dict)

    @property
    def primary(self) -> Decision | None:
        if self.produced is not None:
            return self.produced[0]
        return next(iter(self.wanted), None)


class _Planner:
    def __init__(self, model: ir.Model, backend: Backend, selection: Selection, mixed_range: frozenset[str]) -> None:
        self.model, self.backend, self.selection, self.mixed_range = model, backend, selection, mixed_range
        self.tensors: dict[str, _Tensor] = {}
        self.biases: list[Edge] = []
        self.groups = Groups()
        self.clips: list[RedundantClip] = []
        self.float_nodes: list[tuple[str, str]] = []
        self.remarks: list[Remark] = []
        self.fused: set[ir.Node] = set()
        self.wants: dict[Consumer, Decision] = {}
        self.ties: list[tuple[ir.Node, OpRow, list[int]]] = []
        self.graphs = tuple(regions.reached_graphs(model.graph))
        self.homes = {str(node.name): graph for graph in self.graphs for node in graph}
        self.data_nodes = regions.data_nodes(model.graph)
        self.normalizations = normalizations.parts(model.graph)
        self.ends = regions.first_and_last(model.graph) if backend.first_last_bits is not None else frozenset()

    def run(self) -> QuantPlan:
        for graph in self.graphs:
            for node in graph:
                self._visit(node)
        self._settle()
        for tied in self.ties:
            self._tie_row(*tied)
        if self.backend.placement == "both":
            self._spread()
        self._tie_branches()
        for scope in walk.scopes(self.model):
            if not any(scope is graph for graph in self.graphs):
                self._leave_scope(scope)
        edges = [edge for tensor in self.tensors.values() for edge in self._edges(tensor)]
        return QuantPlan(
            self.backend.backend,
            tuple(edges + self.biases),
            tuple(self.clips),
            tuple(self._useful_ranges()),
            tuple(self.remarks),
            tuple(self.float_nodes),
        )

    # ---------------------------------------------------------------- rows
    def _visit(self, node: ir.Node) -> None:
        if node in self.fused or kept.is_of_quantizer(node):
            return
        row, key = self._row(node)
        if row is None:
            self._leave(node, None)
            return
        reason = self._refusal(node, row)
        if reason is not None:
            self._leave(node, reason)
            return
        self.remarks.extend(kept.remarks(node, row, self.backend))
        decisions = {i: d for i, _ in enumerate(node.inputs) if (d := self._input_decision(node, row, i)) is not None}
        for index, decision in decisions.items():
            self._want(node, index, decision, f"{key} input {index}")
        if self.backend.placement == "both" and row.outputs:
            self._produce(node, row, key)
        if row.tie is not None:
            self.ties.append((node, row, list(decisions)))
        self._bias(node, row, key)

    def _row(self, node: ir.Node) -> tuple[OpRow | None, str]:
        if node.domain:
            return None, node.op_type
        mode = query.attribute(node, "mode", None)
        for key in (f"{node.op_type}/{mode}", node.op_type):
            if key in self.backend.ops:
                return self.backend.ops[key], key
        return None, node.op_type

    def _refusal(self, node: ir.Node, row: OpRow) -> str | None:
        chosen = self.selection.reason(node)
        if chosen is not None:
            return chosen
        if node.name in self.mixed_range:
            return "its inputs have ranges too different for one scale"
        if node not in self.data_nodes:
            return "computes shapes, indices or constants, not data"
        if node in self.normalizations:
            return "part of a normalization that is written out"
        if self.backend.first_last_bits == 0 and node in self.ends:
            return "first or last layer"
        if any(s.fixed is not None for s in row.outputs) and any(map(regions.leads_to_output, node.outputs)):
            return "a probability that leaves the graph needs finer steps"
        if node.op_type == "Concat" and regions.joins_probabilities(node):
            return "joins probabilities that leave the graph"
        for name, expected in row.when.items():
            if query.attribute(node, name, 0) != expected:
                return f"the backend takes {node.op_type} only with {name}={expected}"
        for index, value in enumerate(node.inputs):
            reason = self._input_refusal(node, row.input_slot(index), index, value)
            if reason is not None:
                return reason
        return None

    def _input_refusal(self, node: ir.Node, slot: Slot | None, index: int, value: ir.Value | None) -> str | None:
        if slot is None or slot.use is None or value is None:
            return None
        if qdq.is_dequantize(value.producer()):
            return None
        if not self.backend.types[slot.use].observed:
            return None
        if value.dtype != ir.DataType.FLOAT:
            known = "unknown" if value.dtype is None else value.dtype.name.lower()
            return f"input {index} has type {known}; only float32 is quantized"
        constant = query.constant_array(value)
        if constant is None:
            return (
                "its weight is computed, not constant" if node.op_type != "MatMul" and slot.axis is not None else None
            )
        if constant.size == 0:
            return f"constant {value.name!r} is empty"
        if not np.isfinite(constant).all() or float(np.abs(constant).max()) >= LARGEST_CONSTANT:
            return f"constant {value.name!r} is a mask or not finite"
        return None

    def _leave(self, node: ir.Node, reason: str | None) -> None:
        if node in self.fused:
            return
        if reason is None:
            reason = self.selection.reason(node) or f"{self.backend.backend} has no row for {node.op_type}"
            if self._spreads(node) or any(True for _ in regions.branches(node)):
                return
        if node in self.data_nodes:
            self.float_nodes.append((query.label(node), reason))

    def _leave_scope(self, scope: walk.Scope) -> None:
        nodes = tuple(query.label(n) for n in scope if (n.domain == "" and n.op_type in self.backend.ops))
        if nodes:
            holder = walk.holder(scope) if isinstance(scope, ir.Graph) else None
            kind = f"the body of {query.label(holder)}" if holder is not None else "a model-local function"
            self.remarks.append(Remark(f"{kind} ({scope.name}) is left in float", nodes, "plan"))

    # ---------------------------------------------------------------- decisions
    def _input_decision(self, node: ir.Node, row: OpRow, index: int) -> Decision | None:
        slot, value = row.input_slot(index), node.inputs[index]
        if slot is None or slot.use is None or value is None or not self.backend.types[slot.use].observed:
            return None
        constant = query.constant_tensor(value) is not None
        if slot.axis is not None and not constant:
            slot = next((s for s in row.inputs if s.use and s.axis is None and s is not slot), slot)
        axis = self._axis(node, slot, value) if constant else None
        # A constant that is tied to activations shares their merged range.
        return self._spec(node, slot, "weight" if constant and row.tie is None else "activation", axis)

    def _spec(self, node: ir.Node, slot: Slot, role: Role, axis: int | None) -> TensorSpec:
        assert slot.use is not None
        kind = self.backend.types[slot.use]
        changes = {k: v for k in ("dtype", "symmetric", "granularity") if (v := getattr(slot, k)) is not None}
        bits = 16 if kind.bits is None and kind.dtype in ("int16", "uint16") else kind.bits
        kind = kind.model_copy(update=changes)
        if node in self.ends and self.backend.first_last_bits:
            observer = {"observer": self.backend.first_last_observer}
            kind = kind.with_bits(self.backend.first_last_bits).model_copy(update=observer)
        elif bits is not None and slot.dtype is not None:
            kind = kind.with_bits(bits)
        return kind.spec(role, axis)

    def _axis(self, node: ir.Node, slot: Slot, value: ir.Value) -> int | None:
        size = query.rank(value)
        if slot.axis is None or not size:
            return None
        if slot.axis == "N":
            return self._output_axis(node) % size
        axis = slot.axis % size if -size <= slot.axis < size else None
        if node.op_type == "MatMul" and size < 2:
            return None
        if node.op_type == "ConvTranspose" and query.attribute(node, "group", 1) != 1:
            return None
        return axis

    def _tensor(self, value: ir.Value) -> _Tensor:
        return self.tensors.setdefault(str(value.name), _Tensor(value))

    def _want(self, node: ir.Node, index: int, decision: Decision, rule: str) -> None:
        value = node.inputs[index]
        assert value is not None
        if value.is_graph_input() and self.backend.io.inputs == "float":
            return
        if qdq.is_dequantize(value.producer()):
            return  # the file's own quantizer is kept
        tensor = self._tensor(value)
        tensor.wanted.setdefault(decision, []).append((str(node.name), index))
        tensor.rules.setdefault(decision, rule)
        self.wants[str(node.name), index] = decision

    def _produce(self, node: ir.Node, row: OpRow, key: str) -> None:
        fusion = chains.behind(node, self.backend)
        if any(self.selection.reason(m) for m in fusion.members):
            fusion = chains.Fusion(node.outputs[0], ())
        outputs = list(node.outputs) if not fusion.members else [fusion.output]
        self.fused.update(fusion.members)
        self.clips.extend(fusion.redundant)
        for index, value in enumerate(outputs):
            slot = row.output_slot(index)
            if slot is None or slot.use is None or not self._may_carry_pair(value):
                continue
            if row.float_output and (regions.leaves_model(value) or self._is_normalized(value)):
                continue
            spec = self._spec(node, slot, "activation", None)
            decision: Decision = spec
            if slot.fixed is not None and not fusion.members:
                decision = Fixed(_fixed(slot, spec))
            rule = f"{key} output" + (" behind its activation" if fusion.members else "")
            tensor = self._tensor(value)
            tensor.produced, tensor.slot = (decision, rule), slot

    def _is_normalized(self, value: ir.Value) -> bool:
        """Whether only written-out normalizations read `value`: they compute in float, and rounding is what they see."""
        users = value.consumers()
        return bool(users) and not value.is_graph_output() and all(user in self.normalizations for user in users)

    def _may_carry_pair(self, value: ir.Value) -> bool:
        if value.dtype not in (None, ir.DataType.FLOAT) or any(map(qdq.is_quantize, value.consumers())):
            return False
        return self.backend.io.outputs == "quantize" or not regions.leaves_model(value)

    def _settle(self) -> None:
        """What everything reads on one other grid lies on that from the start, without a second pair behind the first."""
        for tensor in self.tensors.values():
            wanted = self._read_as(tensor.value) if tensor.produced is not None else None
            if tensor.produced is None or wanted is None or _same_grid(tensor.produced[0], wanted):
                continue
            decision: Decision = wanted
            if isinstance(tensor.produced[0], Fixed) and tensor.slot is not None:
                decision = Fixed(_fixed(tensor.slot, wanted))
            tensor.produced = (decision, f"{tensor.produced[1]}, on its readers' grid")

    def _read_as(self, value: ir.Value) -> TensorSpec | None:
        """The one spec with which every reader of `value`, behind data movement too, wants it; None without such."""
        if value.is_graph_output() or not value.uses():
            return None
        found: set[Decision | None] = set()
        for node, index in value.uses():
            wanted = self.wants.get((str(node.name), index))
            moved = wanted is None and index == 0 and self._spreads(node) and self._is_data(node)
            found.update(map(self._read_as, node.outputs) if moved else [wanted])
        (one, *others) = found
        return one if isinstance(one, TensorSpec) and not others else None

    def _tie_row(self, node: ir.Node, row: OpRow, inputs: list[int]) -> None:
        names = [str(value.name) for i in inputs if (value := node.inputs[i]) is not None]
        if row.tie == "io":
            names = [str(chains.behind(node, self.backend).output.name), *names]
        for other in names[1:]:
            self._tie(names[0], other)

    def _tie(self, first: str, second: str) -> None:
        a, b = self.tensors.get(first), self.tensors.get(second)
        if a is None or b is None or not isinstance(a.primary, TensorSpec) or not isinstance(b.primary, TensorSpec):
            return
        if a.primary.qtype == b.primary.qtype and a.primary.symmetric == b.primary.symmetric:
            self.groups.tie(first, second)
        else:
            self.remarks.append(
                Remark(f"{first!r} and {second!r} differ in type and so cannot share a scale", (), "plan")
            )

    # ---------------------------------------------------------------- bias
    def _bias(self, node: ir.Node, row: OpRow, key: str) -> None:
        slot, definition = row.input_slot(2), ops.find(node.domain, node.op_type)
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if slot is None or slot.use is None or bias is None or definition is None or definition.role(2) != "bias":
            return
        if qdq.is_dequantize(bias.producer()):
            return
        kind = self.backend.types[slot.use]
        reason = self._bias_refusal(node, bias, kind.derive is not None)
        if reason is not None:
            self.remarks.append(
                Remark(f"bias {bias.name!r} of {query.label(node)} stays float: {reason}", (str(node.name),), "plan")
            )
            return
        storage = "float" if kind.dtype == "float" else "int32"
        activation, weight = (str(v.name) for v in node.inputs[:2] if v is not None)
        derived = Derived(activation, weight, "float" if storage == "float" else "int32")
        self.biases.append(Edge(str(bias.name), derived, f"{key} bias", ((str(node.name), 2),)))

    def _bias_refusal(self, node: ir.Node, bias: ir.Value, derived: bool) -> str | None:
        if not derived:
            return "the backend wants it so"
        weight, constant = node.inputs[1], query.constant_array(bias)
        if constant is None or bias.dtype != ir.DataType.FLOAT:
            return "it is computed"
        if weight is None or (query.constant_tensor(weight) is None and not qdq.is_dequantize(weight.producer())):
            return "the weight is computed"
        channels = weight.shape[self._output_axis(node)] if weight.shape is not None else None
        if node.op_type == "Gemm" and constant.shape != (channels,):
            return f"shape {constant.shape} is not one value an output channel"
        if node.op_type == "Gemm" and (query.attribute(node, "alpha", 1.0), query.attribute(node, "beta", 1.0)) != (
            1.0,
            1.0,
        ):
            return "Gemm has alpha or beta"
        return None if np.isfinite(constant).all() else "it is not finite"

    @staticmethod
    def _output_axis(node: ir.Node) -> int:
        definition = ops.find(node.domain, node.op_type)
        axis = definition.weight_axis if definition is not None else None
        if axis == "gemm":
            return 0 if query.attribute(node, "transB", 0) else 1
        return axis or 0

    # ---------------------------------------------------------------- pass-through
    def _spreads(self, node: ir.Node) -> bool:
        if node.domain or self.selection.reason(node) or node not in self.data_nodes:
            return False
        mode = query.attribute(node, "mode", None)
        return node.op_type in self.backend.passthrough or f"{node.op_type}/{mode}" in self.backend.passthrough

    def _spread(self) -> None:
        """Forward in graph order, then backward, until nothing changes."""
        candidates = [n for graph in self.graphs for n in graph if self._spreads(n) and self._is_data(n)]
        changed = True
        while changed:
            before = len(self.groups.members()), sum(t.primary is not None for t in self.tensors.values())
            for node in (*candidates, *reversed(candidates)):
                self._spread_node(node)
            changed = before != (len(self.groups.members()), sum(t.primary is not None for t in self.tensors.values()))

    def _is_data(self, node: ir.Node) -> bool:
        source = node.inputs[0]
        return source is not None and source.dtype == ir.DataType.FLOAT and query.constant_tensor(source) is None

    def _spread_node(self, node: ir.Node) -> None:
        source = node.inputs[0]
        assert source is not None
        inner = self._tensor(source)
        outs = [self._tensor(v) for v in node.outputs if self._may_carry_pair(v)]
        spec = inner.primary or next((t.primary for t in outs if t.primary is not None), None)
        if spec is None or not outs:
            return
        if isinstance(spec, TensorSpec) and spec.role != "activation":
            return
        if inner.primary is None:
            self._want(node, 0, spec, f"{node.op_type} passes its input's grid on")
        for tensor in outs:
            if tensor.primary is None or tensor.produced is None:
                tensor.produced = (spec, f"{node.op_type} passes its input's grid on")
            if isinstance(spec, TensorSpec):
                self._tie(str(source.name), str(tensor.value.name))

    def _tie_branches(self) -> None:
        """What an If returns lies on the grid of what its branches return: a pair behind it then changes nothing."""
        for graph in self.graphs:
            for value in (v for node in graph for v in node.outputs):
                for inner in regions.returned_by(value):
                    self._tie(str(value.name), str(inner.name))

    # ---------------------------------------------------------------- result
    def _useful_ranges(self) -> Iterator[UsefulRange]:
        for name, tensor in self.tensors.items():
            found = chains.useful_range(tensor.value) if tensor.primary is not None else None
            if found is not None:
                yield UsefulRange(name, *found)

    def _edges(self, tensor: _Tensor) -> list[Edge]:
        name, edges = str(tensor.value.name), list[Edge]()
        if tensor.produced is None:
            for decision, consumers in tensor.wanted.items():
                shared = self._shared(name, decision) if decision is tensor.primary else decision
                edges.append(Edge(name, shared, tensor.rules[decision], tuple(consumers)))
            return edges
        produced, rule = tensor.produced
        edges.append(Edge(name, self._shared(name, produced), rule))
        for decision, consumers in tensor.wanted.items():
            if decision != produced and not _same_grid(produced, decision):
                edges.append(Edge(name, decision, tensor.rules[decision], tuple(consumers)))
            elif isinstance(produced, TensorSpec):
                edges.extend(self._edge_inside(tensor, decision, consumers))
        return edges

    def _edge_inside(self, tensor: _Tensor, decision: Decision, consumers: list[Consumer]) -> Iterator[Edge]:
        """Consumers in a branch of an If get a pair there too, with the same parameters: kernels fuse within a graph."""
        producer = tensor.value.producer()
        inside = tuple(c for c in consumers if producer is not None and self.homes[c[0]] is not producer.graph)
        if inside:
            root = self.groups.root(str(tensor.value.name))
            yield Edge(str(tensor.value.name), Shared(root), tensor.rules[decision], inside)

    def _shared(self, name: str, decision: Decision) -> Decision:
        root = self.groups.root(name)
        return Shared(root) if root != name else decision


def _same_grid(produced: Decision, wanted: Decision) -> bool:
    """Whether a tensor that is already on the produced grid needs no second pair for a consumer."""
    qtypes: list[QType | None] = [None, None]
    for index, decision in enumerate((produced, wanted)):
        if isinstance(decision, TensorSpec):
            qtypes[index] = decision.qtype
        elif isinstance(decision, Fixed):
            qtypes[index] = decision.qparams.qtype
    return qtypes[0] == qtypes[1] or isinstance(produced, Float)


def _fixed(slot: Slot, spec: TensorSpec) -> QParams:
    fixed = slot.fixed
    assert fixed is not None
    if fixed.range is not None:
        low, high = (np.float32(v) for v in fixed.range)
        return numerics.from_range(np.asarray(low), np.asarray(high), spec.qtype, symmetric=spec.symmetric)
    zero_point = spec.qtype.quant_min if fixed.zero_point == "qmin" else fixed.zero_point or 0
    return QParams(np.asarray(fixed.scale, np.float32), np.asarray(zero_point), spec.qtype)
