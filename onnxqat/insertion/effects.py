"""Effects of choices on a switchboard: quantizers that stay on, their parameters, and nodes that become float."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.calibration import resolve
from onnxqat.calibration.resolve import Resolved
from onnxqat.calibration.weights import weight_qparams
from onnxqat.graph import query, walk
from onnxqat.insertion.choices import Choices
from onnxqat.insertion.culprits import Unit
from onnxqat.insertion.placing import Calibrated
from onnxqat.types import Derived, Edge, Fixed, Float, Placement, QParams, QuantPlan, Shared, TensorSpec


@dataclasses.dataclass(frozen=True)
class Effect:
    """Effect of some choices.

    Attributes:
        plan: the plan with them.
        on: numbers of the placements that are there with them, on the same grid.
        parameters: those that changed, by number.
        unseen: tensors that want a range with them and were never observed, with their specs.
    """

    plan: QuantPlan
    on: frozenset[int]
    parameters: Mapping[int, QParams]
    unseen: Mapping[str, TensorSpec]

    @property
    def float_nodes(self) -> frozenset[str]:
        """Nodes that stay float."""
        return frozenset(name for name, _ in self.plan.float_nodes)


class Effects:
    """Effects of choices on the quantizers that were placed without them.

    Args:
        calibrated: what is placed.
        resolved: the quantizers of the switchboard, in its order.
        plan: what they were resolved from.
    """

    def __init__(self, calibrated: Calibrated, plan: QuantPlan, resolved: Resolved) -> None:
        self._calibrated, self.placements = calibrated, resolved.placements
        self._constants: dict[str, ir.Value] = {}
        for scope in reversed(list(walk.scopes(calibrated.model))):
            self._constants |= {str(v.name): v for v in walk.values(scope) if query.constant_tensor(v) is not None}
        self.specs = {e.tensor: e.decision for e in reversed(plan.edges) if isinstance(e.decision, TensorSpec)}
        groups: dict[str, list[int]] = {}
        for number, placement in enumerate(self.placements):
            groups.setdefault(placement.group or placement.tensor, []).append(number)
        self.units: list[Unit] = [tuple(numbers) for numbers in groups.values()]
        quantized = [e for e in plan.edges if not isinstance(e.decision, (Derived, Float))]
        self.tensors = {u: tuple(dict.fromkeys(self.placements[n].tensor for n in u)) for u in self.units}
        self.integer_nodes = len(_readers(calibrated.model, quantized) - {name for name, _ in plan.float_nodes})

    def spec(self, unit: Unit) -> TensorSpec | None:
        """The spec of a unit; None where its parameters are prescribed."""
        return next((self.specs[t] for t in self.tensors[unit] if t in self.specs), None)

    def values(self, unit: Unit) -> npt.NDArray[Any] | None:
        """The constant that a unit quantizes; None for an activation."""
        return query.constant_array(self._constants.get(self.tensors[unit][0]))

    def rounded(self, quantized: ir.Model) -> dict[str, npt.NDArray[Any]]:
        """Values of the main graph's constants that the file holds otherwise, since they were rounded on data, by name."""
        before, found = self._calibrated.model.graph.initializers, dict[str, npt.NDArray[Any]]()
        for name in {tensor for tensors in self.tensors.values() for tensor in tensors} & before.keys():
            old, new = (query.constant_array(g.get(name)) for g in (before, quantized.graph.initializers))
            if old is not None and new is not None and new.dtype == np.float32 and not np.array_equal(old, new):
                found[name] = new
        return found

    def of(self, choices: Choices) -> Effect:
        """The effect of `choices`; weights are looked at only where they have another range."""
        plan = self._calibrated.plan(choices)
        wanted, seen = resolve.tensors_to_observe(plan), self._calibrated.seen(plan, choices)
        unseen = {name: spec for name, spec in wanted.items() if name not in seen}
        edges = tuple(e for e in plan.edges if _is_activation(e) and not _needs(e, unseen))
        found = resolve.resolve(dataclasses.replace(plan, edges=edges), seen, self._calibrated.model)
        activations: dict[str, list[Placement]] = {}
        for placement in found.placements:
            activations.setdefault(placement.tensor, []).append(placement)
        weights = {e.tensor: e.decision for e in plan.edges if _is_weight(e)}
        on, parameters = set[int](), dict[int, QParams]()
        for number, old in enumerate(self.placements):
            new = _same_place(old, activations.get(old.tensor, []))
            spec = weights.get(old.tensor)
            if isinstance(spec, TensorSpec):
                new = self._weight(old, spec, choices)
            if new is None or new.qtype != old.qparams.qtype or new.scale.shape != old.qparams.scale.shape:
                continue
            on.add(number)
            if not new.same(old.qparams):
                parameters[number] = new
        return Effect(plan, frozenset(on), parameters, unseen)

    def _weight(self, old: Placement, spec: TensorSpec, choices: Choices) -> QParams:
        """Parameters of a weight: by the chosen observer, else the old ones with all corrections made to them."""
        values = query.constant_array(self._constants.get(old.tensor))
        if values is None or choices.observers.get(old.tensor) != spec.observer:
            return old.qparams
        return weight_qparams(values, spec)


def _is_weight(edge: Edge) -> bool:
    return isinstance(edge.decision, TensorSpec) and edge.decision.role == "weight"


def _is_activation(edge: Edge) -> bool:
    return isinstance(edge.decision, (Shared, Fixed)) or (
        isinstance(edge.decision, TensorSpec) and edge.decision.role == "activation"
    )


def _needs(edge: Edge, tensors: Mapping[str, TensorSpec]) -> bool:
    """Check whether the parameters of `edge` come from one of `tensors`."""
    root = edge.decision.root if isinstance(edge.decision, Shared) else edge.tensor
    return root in tensors or edge.tensor in tensors


def _same_place(old: Placement, found: Sequence[Placement]) -> QParams | None:
    """The parameters of the one of `found` that has the consumers of `old`, else of the first."""
    same = (p.qparams for p in found if p.consumers == old.consumers)
    return next(same, found[0].qparams if found else None)


def _readers(model: ir.Model, edges: Sequence[Edge]) -> set[str]:
    """Names of the nodes that read a quantized tensor."""
    values = {str(v.name): v for scope in reversed(list(walk.scopes(model))) for v in walk.values(scope)}
    found = set[str]()
    for edge in edges:
        if edge.consumers is not None:
            found.update(name for name, _ in edge.consumers)
        elif edge.tensor in values:
            found.update(str(node.name) for node in values[edge.tensor].consumers())
    return found
