"""Plan of a backend's table for a model, compared with the quantizers that the file has."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxqat.backends.schema import Backend
from onnxqat.graph import walk
from onnxqat.linting.float_view import FloatView
from onnxqat.placement import planner, table_overrides
from onnxqat.placement.fusion_chains import behind
from onnxqat.placement.table_overrides import NodeSelection
from onnxqat.types import Decision, Edge, Fixed, QuantPlan, Shared, TensorSpec


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """The plan of a backend's table for the float graph of a file.

    Attributes:
        table: the backend's table.
        plain: the float graph.
        plan: what the table wants of each edge.
        reasons: for a node of the file, by identity, why the table leaves it in float.
        specs: for each tensor that carries a pair, what the pair is to be.
        groups: tensors that share their parameters, by the root of the group, which is among them.
        fused: names of nodes that the target computes as part of the one in front of them.
    """

    table: Backend
    plain: FloatView
    plan: QuantPlan
    reasons: dict[int, str]
    specs: dict[str, Decision]
    groups: dict[str, list[str]]
    fused: frozenset[str]

    def spec(self, edge: Edge) -> TensorSpec | Fixed | None:
        """Return the specification of the pair of `edge`, of its group's root where it shares; None for bias or float."""
        decision = edge.decision
        if isinstance(decision, Shared):
            decision = self.specs.get(decision.root, decision)
        return decision if isinstance(decision, (TensorSpec, Fixed)) else None

    def original(self, name: str) -> ir.Node | None:
        """The node of the file that the plan calls `name`."""
        return self.plain.originals.get(name)


def target_of(plain: FloatView, table: Backend) -> Target:
    """The plan of `table` for the float graph of a file.

    Nodes of which the file says that placement for this very table left them in float, as the user or the data wanted,
    stay out of it. A file that was made with ``--exact`` is held against the table with that.
    """
    if plain.exact and plain.backend == table.backend:
        table = table_overrides.apply(table_overrides.Overrides(exact=True), table)
    left = plain.left_float if plain.backend == table.backend else {}
    plan = planner.plan(plain.model, table, NodeSelection(dict(left), {}))
    originals: dict[str, ir.Node] = plain.originals
    reasons = {id(originals[name]): reason for name, reason in plan.float_nodes if name in originals}
    specs: dict[str, Decision] = {}
    groups: dict[str, list[str]] = {}
    for edge in plan.edges:
        if isinstance(edge.decision, (TensorSpec, Fixed)):
            specs.setdefault(edge.tensor, edge.decision)
        if isinstance(edge.decision, Shared):
            members = groups.setdefault(edge.decision.root, [edge.decision.root])
            members.extend([edge.tensor] if edge.tensor not in members else [])
    fused = {str(m.name) for n in walk.nodes(plain.model) if n.op_type in table.ops for m in behind(n, table).members}
    return Target(table, plain, plan, reasons, specs, groups, frozenset(fused))
