"""Placement of what calibration found, and placement again with other choices for single tensors and nodes."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter

import onnx_ir as ir

from onnxqat.analysis import read_curves
from onnxqat.backends.schema import Backend
from onnxqat.calibration import data_dependent_decisions, propagated_ranges, range_choice, resolve, work
from onnxqat.calibration.channel_peaks import Peaks
from onnxqat.calibration.data_dependent_decisions import Findings
from onnxqat.calibration.observers import auto
from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.calibration.resolve import Resolved
from onnxqat.calibration.row_dynamic_range import RowSizes
from onnxqat.calibration.runner import Observed
from onnxqat.data.data import Data
from onnxqat.insertion.choices import NONE, Choices
from onnxqat.placement import planner, table_overrides
from onnxqat.placement.given_encodings import Given
from onnxqat.placement.table_overrides import NodeSelection
from onnxqat.types import Edge, QuantPlan, Remark, Shared, TensorSpec


@dataclasses.dataclass(frozen=True, eq=False)
class Calibrated:
    """A prepared float model with everything that decides about its quantizers.

    Attributes:
        model: prepared float model.
        table: backend table, user overrides applied.
        chosen: nodes that the user took out.
        first: what the graph alone leads to.
        observers: of the tensors that `first` wants observed.
        found: what the data say about the plan.
        peaks: how large the inputs of layers get whose kernels saturate.
        given: encodings that the user brings.
    """

    model: ir.Model
    table: Backend
    chosen: NodeSelection
    first: QuantPlan
    observers: Observed
    found: Findings
    peaks: Peaks
    given: Given = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model: ir.Model,
        table: Backend,
        chosen: NodeSelection,
        first: QuantPlan,
        observers: Observed,
        sizes: dict[str, RowSizes],
        peaks: Peaks | None = None,
    ) -> Calibrated:
        """Derive findings from the observers; `sizes` are of the rows that normalized layers read."""
        _read_through_curves(model, first, observers)
        return cls(
            model, table, chosen, first, observers, data_dependent_decisions.find(model, observers, sizes), peaks or {}
        )

    def plan(self, choices: Choices = NONE) -> QuantPlan:
        """The plan that graph, data and `choices` lead to."""
        found = self.found
        plan = self.first
        if found.mixed_range or found.masked or found.left_out or choices.widths or choices.left_out:
            chosen = table_overrides.without(self.chosen, {**choices.left_out, **found.left_out})
            chosen = dataclasses.replace(chosen, widths={**choices.widths, **chosen.widths})
            plan = planner.plan(self.model, self.table, chosen, mixed_range=found.mixed_range, masked=found.masked)
        return _with_observers(plan, choices) if choices.observers else plan

    def resolve(self, plan: QuantPlan, choices: Choices = NONE) -> Resolved:
        """Parameters for every edge of `plan`."""
        return resolve.resolve(plan, self.seen(plan, choices), self.model, self.peaks, self.given)

    def seen(self, plan: QuantPlan, choices: Choices = NONE) -> dict[str, BaseObserver]:
        """Observers for the tensors of `plan`, those of `choices` where the plan takes them."""
        wanted = resolve.tensors_to_observe(plan)
        observers = {
            **self.observers,
            **{n: o for n, o in choices.seen.items() if n in wanted and wanted[n].observer == o.spec.observer},
        }
        return propagated_ranges.complete(observers, wanted, self.model)

    @functools.cached_property
    def work(self) -> float:
        """Expected seconds of a run of one sample."""
        return work.of_sample(self.model, self.observers, self.observers.samples)

    def choose_ranges(self, data: Data) -> tuple[Remark, ...]:
        """Let ``auto`` observers take the range that costs the network least on `data`."""
        if not any(isinstance(observer, auto.Observer) for observer in self.observers.values()):
            return ()
        plan = self.plan()
        return range_choice.choose(self.model, plan, self.seen(plan), data, self.work)

    def settle(self, remarks: list[Remark]) -> tuple[QuantPlan, Resolved]:
        """The plan that the data lead to, and its parameters; adds to `remarks`."""
        remarks.extend(self.found.remarks)
        plan = self.plan()
        resolved = self.resolve(plan)
        remarks.extend((*plan.remarks, *resolved.remarks))
        return plan, resolved


def _read_through_curves(model: ir.Model, plan: QuantPlan, observers: Observed) -> None:
    """Tell the ``auto`` observers of tensors that one activation function reads, and no other range depends on."""
    edges = Counter(edge.tensor for edge in plan.edges)
    roots = {edge.decision.root for edge in plan.edges if isinstance(edge.decision, Shared)}
    own = {e.tensor for e in plan.edges if isinstance(e.decision, TensorSpec) and edges[e.tensor] == 1} - roots
    found = {name: o for name, o in observers.items() if name in own and isinstance(o, auto.Observer)}
    curves = read_curves.find(model.graph) if found else {}
    for name, curve in curves.items():
        if name in found:
            found[name].read_through(curve)


def _with_observers(plan: QuantPlan, choices: Choices) -> QuantPlan:
    """`plan` with the observers of `choices`; a group, which has one range, takes one where all of it has it."""
    groups: dict[str, set[str]] = {}
    for edge in plan.edges:
        root = edge.decision.root if isinstance(edge.decision, Shared) else edge.tensor
        groups.setdefault(root, set()).add(edge.tensor)
    agreed = {root for root, members in groups.items() if len({choices.observers.get(m) for m in members}) == 1}

    def changed(edge: Edge) -> Edge:
        observer = choices.observers.get(edge.tensor)
        if observer is None or edge.tensor not in agreed or not isinstance(edge.decision, TensorSpec):
            return edge
        return dataclasses.replace(edge, decision=dataclasses.replace(edge.decision, observer=observer))

    return dataclasses.replace(plan, edges=tuple(map(changed, plan.edges)))
