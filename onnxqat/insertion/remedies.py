"""Remedies for one quantizer: ranges of other observers, codes of 16 bits, or float."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence

from onnxqat.calibration import resolve, runner
from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.data.data import Data
from onnxqat.insertion import ranges
from onnxqat.insertion.allowed import Allowed
from onnxqat.insertion.change import Change, floated
from onnxqat.insertion.choices import Choices, merged
from onnxqat.insertion.culprits import Unit
from onnxqat.insertion.effects import Effect, Effects
from onnxqat.insertion.neighbours import Neighbours
from onnxqat.insertion.placing import Calibrated
from onnxqat.placement import compiler_limits
from onnxqat.runtime import vendor_operators
from onnxqat.types import QParams, QuantPlan, TensorSpec

WIDE = 16
BYTE = 8
FEWEST_BITS = 7
"""Codes of fewer bits are left alone: who asks for them means to train. 8-bit weights in -64..63 have 7 bits."""

Remedy = tuple[Change, Choices]


class Remedies:
    """Remedies for the quantizers of a file.

    Args:
        calibrated: what the file was made from.
        plan: what it follows.
        effects: its quantizers.
        data: calibration data.
        allowed: what may be changed.
    """

    def __init__(self, calibrated: Calibrated, plan: QuantPlan, effects: Effects, data: Data, allowed: Allowed) -> None:
        self._calibrated, self._effects, self._data, self._allowed = calibrated, effects, data, allowed
        self._neighbours = Neighbours(calibrated.model, calibrated.table)
        self._stopped = compiler_limits.stopped(calibrated.model, calibrated.table, plan)
        self._wanted = resolve.tensors_to_observe(plan)
        self._observed: ranges.Observers = {}
        # By tensor and observer: the codes of 8 and of 16 bits of one tensor may have different ones.
        self._late: dict[tuple[str, str], BaseObserver] = {}
        self._bits = {
            name: decision.qtype.bits
            for edge in plan.edges
            if isinstance(decision := edge.decision, TensorSpec) and decision.role == "weight"
            for name, _ in edge.consumers or ()
        }

    def observe(self, units: Iterable[Unit]) -> None:
        """Let all observers see the activations among `units`, in one pass over the data at most."""
        specs: dict[str, TensorSpec] = {}
        for unit in units:
            if self._effects.spec(unit) is not None and self._effects.values(unit) is None:
                specs |= self._tied(unit)
        if specs:
            self._observed |= ranges.observe(self._calibrated.model, specs, self._data, self._calibrated.observers)

    def ranges(self, unit: Unit) -> Iterator[tuple[str, QParams, Choices]]:
        """Observers whose range is another one, with the parameters and the choice."""
        spec, values, tied = self._effects.spec(unit), self._effects.values(unit), self._tied(unit)
        if spec is None:
            return
        if values is not None and spec.role == "weight":
            found = ranges.of_weight(spec, values)
        else:
            found = ranges.of_activations(tied, self._observed)
        known = [self._effects.placements[unit[0]].qparams]
        for name, qparams in found:
            if qparams.qtype == known[0].qtype and not any(map(qparams.same, known)):
                known.append(qparams)
                seen = {tensor: self._observed[tensor][name] for tensor in tied if tensor in self._observed}
                yield (
                    name,
                    qparams,
                    Choices(observers=dict.fromkeys(tied or self._effects.tensors[unit], name), seen=seen),
                )

    def wide(self, unit: Unit, current: Choices) -> Remedy | None:
        """Remedy of 16 bits for an activation, its producer and its consumers; None if the table has no such types."""
        spec = self._effects.spec(unit)
        if (
            not self._allowed.wide
            or spec is None
            or spec.role == "weight"
            or not FEWEST_BITS <= self._bits_of(unit) < WIDE
        ):
            return None
        for names in reversed(self._options(unit)):
            if not self._neighbours.may_be_wide(names):
                continue
            widths = {name: (self._bits.get(name, BYTE), WIDE) for name in names}
            choices = Choices(widths=widths)
            effect = self.effect(current, choices)
            before = self._effects.of(current).float_nodes
            if not effect.on.isdisjoint(unit) or effect.float_nodes - before or self._stops(effect):
                continue
            tensor = self._effects.tensors[unit][0]
            return Change(tensor, "16 bits", f"{tensor!r} has 16 bits", names), self.observed(effect, choices)
        return None

    def float_(self, unit: Unit, current: Choices, reason: str) -> Remedy | None:
        """Remedy that leaves the fewest nodes in float that rid the tensor of its quantizer and that the compiler accepts."""
        if not self._allowed.types or self._bits_of(unit) < FEWEST_BITS:
            return None
        before = self._effects.of(current).float_nodes
        best: Remedy | None = None
        for names in self._options(unit):
            choices = Choices(left_out=dict.fromkeys(names, reason))
            effect = self.effect(current, choices)
            change = floated(self._effects.tensors[unit][0], effect.float_nodes - before)
            if not effect.on.isdisjoint(unit) or (best is not None and change.cost >= best[0].cost):
                continue
            if not self._stops(effect):
                best = change, self.observed(effect, choices)
        return best

    def leave(self, names: Sequence[str], current: Choices, reason: str, tensor: str) -> Remedy | None:
        """Remedy that leaves the nodes `names` in float, with its cost in neighbours; None where the compiler stops at it."""
        choices = Choices(left_out=dict.fromkeys(names, reason))
        effect = self.effect(current, choices)
        if self._stops(effect):
            return None
        new = effect.float_nodes - self._effects.of(current).float_nodes
        return floated(tensor, new), self.observed(effect, choices)

    def around(self, name: str) -> tuple[str, ...]:
        """A node and the producers of its inputs; empty if the model has no such node, or the user chose a type."""
        names = self._neighbours.makers_for(name)
        return () if self._is_kept(names) else names

    def effect(self, current: Choices, more: Choices) -> Effect:
        """Effect of `more` on top of `current`."""
        return self._effects.of(merged([current, more]))

    def _stops(self, effect: Effect) -> bool:
        """Check whether the target's compiler, which takes the file as it is, stops at a node after `effect`."""
        model, table = self._calibrated.model, self._calibrated.table
        return not compiler_limits.stopped(model, table, effect.plan) <= self._stopped

    def _options(self, unit: Unit) -> list[tuple[str, ...]]:
        """Sets of nodes around a quantizer, without those whose types the user chose."""
        options = self._neighbours.options(self._effects.tensors[unit])
        return [names for names in options if not self._is_kept(names)]

    def _bits_of(self, unit: Unit) -> int:
        """The width of a quantizer, of the narrowest where readers want several."""
        return min(self._effects.placements[number].qparams.qtype.bits for number in unit)

    def _is_kept(self, names: Collection[str]) -> bool:
        made = [str(v.name) for name in names for v in self._neighbours.nodes[name].outputs]
        return not self._allowed.kept.isdisjoint([*names, *made])

    def _tied(self, unit: Unit) -> dict[str, TensorSpec]:
        """The tensors of `unit` that are observed, each with its spec."""
        return {tensor: self._wanted[tensor] for tensor in self._effects.tensors[unit] if tensor in self._wanted}

    def observed(self, effect: Effect, choices: Choices) -> Choices:
        """`choices` with observers of the tensors that only they quantize, from another pass over the data."""
        missing = {name: spec for name, spec in effect.unseen.items() if (name, spec.observer) not in self._late}
        if missing:
            found = runner.calibrate(vendor_operators.runnable_part(self._calibrated.model), missing, self._data)
            self._late |= {(name, spec.observer): found[name] for name, spec in missing.items()}
        late = {name: self._late[name, spec.observer] for name, spec in effect.unseen.items()}
        return dataclasses.replace(choices, seen={**choices.seen, **late})
