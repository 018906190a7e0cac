"""State of the planner: tensors with their decisions, groups of tensors that share parameters, and facts about the graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.analysis.masks import Masks
from onnxqat.backends.schema import Backend, OpRow, Slot
from onnxqat.graph import data_movement, qdq, query
from onnxqat.placement import sensitive_nodes
from onnxqat.placement.groups import Groups
from onnxqat.placement.table_overrides import NodeSelection
from onnxqat.types import Decision, Edge, RedundantClip, Remark, ShiftLimit, TensorSpec, TieFreeMean

Consumer = tuple[str, int]


@dataclasses.dataclass
class TensorPlan:
    """One tensor with the decisions of its producer and consumers while planning.

    Attributes:
        value: the tensor.
        produced: decision and rule, if the row of its producer gives it parameters.
        slot: the slot of that row.
        wanted: consumers, grouped by the decision that they ask for.
        rules: the rule behind each of those.
        converted: consumers that read the grid of a group which the tensor itself does not lie on: (root, rule).
    """

    value: ir.Value
    produced: tuple[Decision, str] | None = None
    slot: Slot | None = None
    wanted: dict[Decision, list[Consumer]] = dataclasses.field(default_factory=dict)
    rules: dict[Decision, str] = dataclasses.field(default_factory=dict)
    converted: dict[Consumer, tuple[str, str]] = dataclasses.field(default_factory=dict)

    @property
    def primary(self) -> Decision | None:
        """The decision that the tensor's own pair follows: the producer's, else that of the first consumer."""
        if self.produced is not None:
            return self.produced[0]
        return next(iter(self.wanted), None)


class PlanBuilder:
    """The state of planning; the steps of :mod:`onnxqat.placement.planner` fill it in.

    Args:
        model: prepared float model; it is only read.
        backend: table, user overrides applied.
        selection: nodes that the user took out.
        mixed_range: names of Concat nodes whose inputs have ranges too different for one scale, each with the name of
            the widest input.
        masked: names of tensors that turned out to be masks.
    """

    def __init__(
        self,
        model: ir.Model,
        backend: Backend,
        selection: NodeSelection,
        mixed_range: Mapping[str, str],
        masked: frozenset[str] = frozenset(),
    ) -> None:
        self.model, self.backend, self.selection = model, backend, selection
        self.mixed_range, self.masked = mixed_range, masked
        self.masks = Masks(masked)
        self.tensors: dict[str, TensorPlan] = {}
        self.biases: list[Edge] = []
        self.groups = Groups()
        self.clips: list[RedundantClip] = []
        self.float_nodes: list[tuple[str, str]] = []
        self.remarks: list[Remark] = []
        self.shift_limits: list[ShiftLimit] = []
        self.tie_free_means: list[TieFreeMean] = []
        self.fused: set[ir.Node] = set()
        self.unpaired: dict[ir.Value, str] = {}
        self.layers_in_float: dict[ir.Node, str] = {}
        self.wants: dict[Consumer, Decision] = {}
        self.flexible: set[Consumer] = set()
        self.float_capable: set[ir.Value] = set()
        self.sharing: list[tuple[ir.Node, OpRow, list[int]]] = []
        self.graphs = tuple(dataflow.reached_graphs(model.graph))
        self.homes = {str(node.name): graph for graph in self.graphs for node in graph}
        self.data_nodes = dataflow.data_nodes(model.graph)
        self.fine = sensitive_nodes.reasons(model.graph, backend)
        self.ends = dataflow.first_and_last(model.graph) if backend.first_last_bits is not None else frozenset()

    def row(self, node: ir.Node) -> tuple[OpRow | None, str]:
        """The table's row for `node` and its key; ``Operator/mode`` and ``Operator/computed`` win over the operator alone.

        ``computed`` is the row of a node without a constant input. None for what every compiler removes, whatever the
        table says of the operator.
        """
        if node.domain or data_movement.is_removed(node):
            return None, node.op_type
        kinds = [query.mode(node), *([] if any(map(self._is_stored, node.inputs)) else ["computed"])]
        for key in (*(f"{node.op_type}/{kind}" for kind in kinds), node.op_type):
            if key in self.backend.ops:
                return self.backend.ops[key], key
        return None, node.op_type

    def tensor(self, value: ir.Value) -> TensorPlan:
        """The draft of `value`, made where there is none yet."""
        return self.tensors.setdefault(str(value.name), TensorPlan(value))

    def want(self, node: ir.Node, index: int, decision: Decision, rule: str) -> None:
        """Note that input `index` of `node` is to be read as `decision`."""
        value = node.inputs[index]
        assert value is not None
        if value.is_graph_input() and self.backend.io.inputs == "float":
            return
        if qdq.is_dequantize(value.producer()):
            return  # the file's own quantizer is kept
        tensor = self.tensor(value)
        tensor.wanted.setdefault(decision, []).append((str(node.name), index))
        tensor.rules.setdefault(decision, rule)
        self.wants[str(node.name), index] = decision

    def may_carry_pair(self, value: ir.Value) -> bool:
        """Check whether a pair behind the producer of `value` is possible and wanted by the backend."""
        if not value.name:  # an output that is left out, as Dropout's mask
            return False
        if value.dtype not in (None, ir.DataType.FLOAT) or any(map(qdq.is_quantize, value.consumers())):
            return False
        if value.name in self.masked or value in self.unpaired:
            return False
        return self.backend.io.outputs == "quantize" or not dataflow.leaves_model(value)

    def spreads(self, node: ir.Node) -> bool:
        """Check whether the output of `node` takes over the parameters of its input."""
        if node.domain or self.selection.reason(node) or node not in self.data_nodes or node in self.fine:
            return False
        return self.passes(node)

    def passes(self, node: ir.Node) -> bool:
        """Check whether the table lists `node` as passthrough, or every compiler removes it."""
        names = self.backend.passthrough
        return data_movement.is_removed(node) or node.op_type in names or f"{node.op_type}/{query.mode(node)}" in names

    def is_constant(self, value: ir.Value | None) -> bool:
        """Check whether `value` is stored, or computed from what is stored alone, such as a part of a matrix."""
        maker = query.producer(value)
        if maker is None or query.constant_tensor(value) is not None:
            return query.constant_tensor(value) is not None
        return not qdq.is_dequantize(maker) and maker not in self.data_nodes and not any(dataflow.branches(maker))

    def _is_stored(self, value: ir.Value | None) -> bool:
        """Check whether `value` is constant, or a constant behind a quantizer that the file has."""
        maker = query.producer(value)
        return self.is_constant(maker.inputs[0] if qdq.is_dequantize(maker) else value)

    @staticmethod
    def moves_float(node: ir.Node) -> bool:
        """Check whether `node` moves float32 data that is not a constant."""
        source = node.inputs[0]
        return source is not None and source.dtype == ir.DataType.FLOAT and query.constant_tensor(source) is None

    def share(self, first: str, second: str) -> bool:
        """Let two tensors share one scale, where both are quantized and their types agree; whether they do now."""
        a, b = self.tensors.get(first), self.tensors.get(second)
        if a is None or b is None or not isinstance(a.primary, TensorSpec) or not isinstance(b.primary, TensorSpec):
            return False
        if a.primary.qtype == b.primary.qtype and a.primary.symmetric == b.primary.symmetric:
            self.groups.join(first, second)
            return True
        return False
