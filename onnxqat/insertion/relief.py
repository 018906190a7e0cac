"""One round of the guard: culprits of a file, and what relieves it of them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from onnxqat.calibration.noise import share_of
from onnxqat.calibration.resolve import Resolved
from onnxqat.data.data import Data
from onnxqat.data.inputs import Feeds
from onnxqat.insertion import shared_noise, suspicion, trial
from onnxqat.insertion.allowed import Allowed
from onnxqat.insertion.change import NAMED, Change, floated
from onnxqat.insertion.choices import Choices, merged
from onnxqat.insertion.culprits import Bisection, Ranked, Suspects, Unit
from onnxqat.insertion.effects import Effects
from onnxqat.insertion.meter import Excess, Meter
from onnxqat.insertion.placing import Calibrated
from onnxqat.insertion.refusals import Refusal
from onnxqat.insertion.remedies import Remedies, Remedy
from onnxqat.insertion.switchboard import Switchboard
from onnxqat.insertion.trial import Trial
from onnxqat.runtime.non_finite import Origin
from onnxqat.types import QuantPlan
from onnxqat.verdict import AMBER_SQNR

SEARCH, RANGES = 0.65, 0.8
"""Shares of the runs after which no more culprits are looked for, and no more ranges tried; the rest shows what can be
taken back."""

EXPECTED, FEWEST = 60.0, 2
"""Seconds that all runs may be expected to take on one core, and the samples that a run has at least: where 8 samples would
take longer, as those of a detector on large images, runs have fewer."""

LAST = 2
"""Runs that are kept for what all changes come to."""

BATCH = 6
"""Culprits that are relieved before more are looked for."""

LEAST, EVEN, TIMES = 0.05, 32, 4
"""A culprit alone brings this share of the noise that the floor allows, and one part in so many of all noise, or where there
are more quantizers so many times the part of each: where noise comes in smaller parts, no single one is to blame."""

REST = 0.5
"""Noise of what was not looked into, as a share of what the floor allows, with which enough culprits are found."""

NOISY = 10.0
"""Noise of a file, as a multiple of what the floor allows, whose parts are large enough to look at: 10 dB below the floor."""

ENOUGH = 0.1
"""A culprit with another range is relieved where it brings this share of what the floor allows; nine more may do so."""

HALVED = 0.5
"""Share of the noise of its quantizer that another range may leave to be worth it: 3 dB less."""

SHARE, FEW = 0.25, 2
"""Share of the integer nodes that may go float, and their number in a small model. A file that keeps its accuracy only
with more of them is none for this table: that is a question of widths or of training, and a person's to answer."""

WORTH = 0.1
"""Share of the noise that all changes relieve of, each quantizer alone, for which a file is made and its weights are rounded
anew: of less than half a decibel nothing is left there."""

LITTLE = 1.26
"""Changes without which, all together, noise grows by no more than this factor, 1 dB, are taken back."""


def affordable(work: float, runs: int) -> int:
    """Number of samples in each of so many `runs`, of which one of a sample is expected to take `work` seconds."""
    most = EXPECTED / max(work * runs, EXPECTED / trial.SAMPLES)
    return max(FEWEST, int(most))


def affordable_runs(work: float, fewest: int, most: int) -> int:
    """Number of runs, from `fewest` to `most`, that may be expected to stay within the time with as few samples as there are.

    Args:
        work: seconds that a run of one sample is expected to take.
        fewest: number of runs, however long they take.
        most: number of runs, however short they are.
    """
    return max(fewest, int(min(EXPECTED / max(work * FEWEST, EXPECTED / most), most)))


class Relief:
    """One round.

    Args:
        calibrated: what the file was made from.
        plan: what it follows.
        resolved: its parameters.
        choices: those that it was made with.
        data: calibration data.
        allowed: what may be changed.
        total: integer nodes before any change; None in the first round.

    Attributes:
        integer_nodes: before any change.
        runs: that were made.
        refused: culprits that stay quantized.
        why: reason why an output stays below the floor.
    """

    def __init__(
        self,
        calibrated: Calibrated,
        plan: QuantPlan,
        resolved: Resolved,
        choices: Choices,
        data: Data,
        allowed: Allowed,
        total: int | None,
    ) -> None:
        self._calibrated, self._data, self._allowed, self._base = calibrated, data, allowed, choices
        self._effects = Effects(calibrated, plan, resolved)
        self._remedies = Remedies(calibrated, plan, self._effects, data, allowed)
        self._float_before = {name for name, _ in calibrated.plan().float_nodes}
        self._parts: dict[Unit, Remedy] = {}
        self._alone: dict[Unit, Excess] = {}
        self._gained: dict[Unit, float] = {}
        self._rounded: dict[str, npt.NDArray[Any]] = {}
        self.integer_nodes = self._effects.integer_nodes if total is None else total
        self.runs, self.refused, self.why = 0, list[Refusal](), "its quantizers alone do not show what the file does"

    @property
    def choices(self) -> Choices:
        """Choices that the file was made with, and all changes, with ranges of what only all of them make quantizers read."""
        return self._completed(None)

    def search(self, quantized: ir.Model, tried: Trial | Origin | None, limit: int) -> list[Change]:
        """Find culprits and relieve them.

        Args:
            quantized: the file.
            tried: what it gave.
            limit: runs at most.

        Returns:
            The changes; empty where nothing helps.

        Raises:
            ModelError: onnxruntime does not run the model with switches.
        """
        # Values that are not finite may be in any sample of the trial.
        count = trial.SAMPLES if isinstance(tried, Origin) else affordable(self._calibrated.work, limit)
        batches = trial.samples(self._data, count)
        watched = [tried.tensor] if isinstance(tried, Origin) else []
        model, table = self._calibrated.model, self._calibrated.table
        self._rounded = self._effects.rounded(quantized)
        board = Switchboard(model, self._effects.placements, table.pairs, batches, watched, self._rounded)
        meter = Meter(board, tried, limit)
        if meter.start.value > 1:
            self._relieve(meter, functools.partial(self._suspects, quantized, batches, tried), limit)
            if isinstance(tried, Origin) and not self._parts:
                self._leave(meter, tried)
        changes = self._needed(meter)
        self.runs = board.runs
        return changes

    def relieve_many(self, quantized: ir.Model, tried: Trial) -> list[Change]:
        """Relieve of the quantizers that bring several times their part of the noise, without a run.

        With float only where it runs in float16 beside the codes: many nodes in float32 make a file that runs on a CPU
        slower than the float model.

        Args:
            quantized: the file, whose noise no quantizer alone is to blame for.
            tried: what it gave.

        Returns:
            The changes; empty where gradients tell nothing, or no quantizer brings several times its part.
        """
        reason = f"by gradients: brings {shared_noise.TIMES:g} times its part of the noise"

        def remedy(unit: Unit, choices: Choices) -> Remedy | None:
            wide = self._remedies.wide(unit, choices)
            may_be_float = wide is None and self._calibrated.table.float16
            return self._remedies.float_(unit, choices, reason) if may_be_float else wide

        units = itertools.islice(self._effects.tensors, shared_noise.LOOKED)
        if not self._calibrated.table.float16 and not any(self._remedies.wide(unit, self._base) for unit in units):
            return []
        draws = affordable_runs(self._calibrated.work, suspicion.DRAWS, shared_noise.DRAWS)
        known = suspicion.at_outputs(quantized, self._calibrated.model, self._data, tried, draws, by_parts=True)
        noise = {unit: sum(known.get(name, 0.0) for name in names) for unit, names in self._effects.tensors.items()}
        enough = sum(noise.values()) * share_of(AMBER_SQNR) / share_of(tried.worst)
        before = self._effects.of(self._base)
        most = max(int(SHARE * self.integer_nodes), FEW) - len(before.float_nodes - self._float_before)
        for unit, found, gone in shared_noise.worthwhile(self._effects, noise, enough, most, self._base, remedy):
            self._parts[unit], self._gained[unit] = found, gone
        self.why = "no quantizer alone is to blame, the noise of all adds up"
        return [self._apart(unit) for unit in self._parts]

    def _suspects(
        self,
        quantized: ir.Model,
        batches: Sequence[Feeds],
        tried: Trial | Origin | None,
        noise: Callable[[Sequence[Unit]], float],
        least: float,
    ) -> Suspects:
        """The search for culprits: in the order of gradients, or by bisection where those cannot be had."""
        tensors, known = self._effects.tensors, dict[str, float]()
        if isinstance(tried, Trial):
            known = suspicion.at_outputs(quantized, self._calibrated.model, self._data, tried)
        if all(tensor in known for of in tensors.values() for tensor in of):
            return Ranked({unit: sum(known[tensor] for tensor in of) for unit, of in tensors.items()}, noise, least)
        known = suspicion.at_tensors(quantized, batches)
        middle = statistics.median(known.values()) if known else 0.0  # of those in branches of If nothing is known
        expected = {unit: max(known.get(tensor, middle) for tensor in of) for unit, of in tensors.items()}
        return Bisection(self._effects.units, expected, noise, least)

    def _relieve(self, meter: Meter, suspects: Callable[..., Suspects], limit: int) -> None:
        """Look for culprits and relieve them, until the floor is reached or runs or culprits are used up."""
        known: dict[Unit, Excess] = {}

        def noise(units: Sequence[Unit]) -> float:
            found = meter.excess([number for unit in units for number in unit])
            if len(units) == 1:
                known[units[0]] = found
            return found.value

        even = max(EVEN, len(self._effects.units) / TIMES)
        least = max(LEAST, min(meter.start.value, NOISY) / even)
        search = suspects(noise, least)
        culprits: list[Unit] = []
        now = meter.start
        best, kept = now.value, dict(self._parts)
        while now.value > 1:
            batch: dict[Unit, Excess] = {}
            for unit, _ in search.more(lambda: meter.left > limit * (1 - SEARCH)):
                batch[unit] = self._alone[unit] = known[unit]
                if search.rest <= REST or len(batch) == BATCH:
                    break
            if not batch:
                break
            culprits += batch
            self._change_ranges(meter, batch, limit)
            now = self._change_types(meter, batch, search.rest, now)
            if now.value <= best or self._rounded:
                best, kept = now.value, dict(self._parts)
        # Each helps alone. Noise that makes up for noise elsewhere is missed until that is gone too: a batch may make more.
        self._parts = kept
        self.why = self._reason(culprits, ended=search.ended)

    # ---------------------------------------------------------------- remedies
    def _change_ranges(self, meter: Meter, culprits: dict[Unit, Excess], limit: int) -> None:
        """Give culprits the range that leaves least of their noise; `culprits` then says what that is."""
        if not self._allowed.ranges or any(alone.value == math.inf for alone in culprits.values()):
            return
        self._remedies.observe(culprits)
        for unit, alone in culprits.items():
            best: tuple[Excess, str, Choices] | None = None
            for name, qparams, choices in self._remedies.ranges(unit):
                if meter.left <= limit * (1 - RANGES):
                    break
                found = meter.excess(unit, dict.fromkeys(unit, qparams))
                if best is None or found.value < best[0].value:
                    best = found, name, choices
            if best is None or best[0].value > HALVED * alone.value:
                continue
            self._gained[unit] = alone.value - best[0].value
            culprits[unit] = best[0]
            tensor = self._effects.tensors[unit][0]
            what = f"{tensor!r} has the range that {best[1]} finds"
            self._parts[unit] = Change(tensor, "range", what, ()), best[2]

    def _change_types(self, meter: Meter, culprits: dict[Unit, Excess], rest: float, now: Excess) -> Excess:
        """Give culprits 16 bits or leave them float, until the floor is reached; what that leads to.

        Those go first that bring most noise for each node that becomes float.

        Args:
            meter: for looking where the rest should be little enough.
            culprits: with the noise that each brings now.
            rest: noise of what was not looked into.
            now: before.
        """
        waiting = {unit: alone for unit, alone in culprits.items() if alone.value > ENOUGH}
        first = {unit: self._other_type(unit, alone) for unit, alone in waiting.items()}
        costs = {unit: remedy[0].cost or HALVED for unit, remedy in first.items() if remedy is not None}
        looked = False
        for unit in sorted(costs, key=lambda unit: -waiting[unit].value / costs[unit]):
            if sum(alone.value for alone in culprits.values()) + rest <= 1 and not looked and meter.left > LAST:
                now, looked = self._excess(meter, None), True
                if now.value <= 1:
                    return now
            alone = waiting[unit]
            remedy = self._other_type(unit, alone)  # beside what was changed since
            if remedy is not None and self._is_cheap(remedy, self._without(unit), alone):
                self._parts[unit], looked = remedy, False
                self._gained[unit] = self._alone[unit].value
                culprits[unit] = dataclasses.replace(alone, value=0.0)
        return now if looked or meter.left < LAST else self._excess(meter, None)

    def _other_type(self, unit: Unit, alone: Excess) -> Remedy | None:
        """16 bits for a culprit, or float."""
        current = self._without(unit)
        remedy = None if alone.value == math.inf else self._remedies.wide(unit, current)
        if remedy is not None:
            return remedy
        reason = f"measured: {self._effects.tensors[unit][0]!r}, quantized alone, leaves {_decibels(alone)}"
        return self._remedies.float_(unit, current, reason)

    def _leave(self, meter: Meter, origin: Origin) -> None:
        """Leave the node in float whose result is not finite, with all that its inputs come from."""
        around = self._remedies.around(origin.node)
        if around and self._allowed.types:
            reason = f"its result {origin.tensor!r} is not finite between quantizers"
            remedy = self._remedies.leave(around, self._base, reason, origin.tensor)
            if remedy is not None:
                self._parts[()] = remedy
            if remedy is not None and self._excess(meter, None).value > 1:
                del self._parts[()]

    def _is_cheap(self, remedy: Remedy, current: Choices, alone: Excess) -> bool:
        """Check whether few enough nodes become float with `remedy`; no limit if outputs are not finite."""
        more = self._remedies.effect(current, remedy[1]).float_nodes - self._float_before
        limit = max(int(SHARE * self.integer_nodes), FEW)
        if len(more) <= limit or alone.value == math.inf:
            return True
        change = remedy[0]
        self.refused.append(Refusal(change.tensor, alone.value, change.nodes, len(more), limit, self.integer_nodes))
        return False

    def _reason(self, culprits: Sequence[Unit], *, ended: bool) -> str:
        """Reason why an output stays below the floor."""
        named = ", ".join(repr(self._effects.tensors[unit][0]) for unit in culprits[:NAMED])
        if named and not self._allowed.types:
            return f"{self._allowed.why} keeps types as they are, also of what costs most, {named}"
        if not ended:
            return "the runs of the guard are used up"
        return "nothing more helps" if named else "no quantizer alone is to blame, the noise of all adds up"

    # ---------------------------------------------------------------- what is needed
    def _needed(self, meter: Meter) -> list[Change]:
        """Take back changes without a notable effect, and return the others with their effects.

        Where weights were rounded on data, in turn, to make up for the noise in front of them, the switches cannot leave out
        one: the others are rounded for it. What each brings alone has to do.
        """
        if not self._parts:
            return []
        if self._rounded:
            if sum(self._gained.values()) < WORTH * meter.start.value < math.inf:
                self.why = "nothing more helps"
                return []
            return [self._apart(unit) for unit in self._parts]
        reached = self._excess(meter, None)
        enough = max(1 if reached.value <= 1 else 0, LITTLE * reached.value)
        without: dict[Unit, Excess] = {}
        for unit in reversed(list(self._parts)):
            if meter.left < 1:
                break
            found = self._excess(meter, unit)
            if len(self._parts) > 1 and found.value <= enough:
                del self._parts[unit]
                reached = found
            else:
                without[unit] = found
        if len(self._parts) == 1:
            without = dict.fromkeys(self._parts, meter.start)
        return [self._measured(unit, without.get(unit), reached) for unit in self._parts]

    def choices_without(self, change: Change) -> Choices:
        """All choices but those of one of the changes that :meth:`search` gave, with what is then to be observed."""
        return self._completed(self._unit(change))

    def keep(self, count: int) -> list[Change]:
        """Undo all but so many of the changes that :meth:`search` gave, and return these: those that relieve of most."""
        strongest = sorted(self._parts, key=lambda unit: -self._gained.get(unit, math.inf))[:count]
        self._parts = {unit: part for unit, part in self._parts.items() if unit in strongest}
        return [self._apart(unit) for unit in self._parts]

    def take_back(self, change: Change) -> None:
        """Undo one of the changes that :meth:`search` gave."""
        del self._parts[self._unit(change)]

    def _unit(self, change: Change) -> Unit:
        return next(u for u, (own, _) in self._parts.items() if (own.tensor, own.kind) == (change.tensor, change.kind))

    def _measured(self, unit: Unit, without: Excess | None, reached: Excess) -> Change:
        """Return the change for `unit` with its effect, NaN where no run was left for it, and its cost beside the others."""
        change, _ = self._parts[unit]
        found: dict[str, Any] = {"output": reached.output, "without_db": math.nan, "with_db": reached.decibels}
        if without is not None:
            found |= {"output": without.output, "without_db": without.decibels}
        return self._costed(unit, change, found)

    def _apart(self, unit: Unit) -> Change:
        """Return the change for `unit` with what it relieves of alone, and its cost beside the others."""
        change, alone = self._parts[unit][0], self._alone.get(unit)
        found: dict[str, Any] = {"without_db": math.nan, "with_db": math.nan}
        if alone is not None:
            found |= {"output": alone.output, "alone_db": alone.decibels}
        return self._costed(unit, change, found)

    def _costed(self, unit: Unit, change: Change, found: dict[str, Any]) -> Change:
        if change.kind != "float":
            return dataclasses.replace(change, **found)
        known = self._effects.of(self._without(unit)).float_nodes
        return floated(change.tensor, self._effects.of(self.choices).float_nodes - known, **found)

    def _excess(self, meter: Meter, without: Unit | None) -> Excess:
        """Measure the excess with all changes but that for one unit."""
        effect = self._effects.of(self._without(without))
        return meter.excess(effect.on, effect.parameters)

    def _completed(self, without: Unit | None) -> Choices:
        """All choices but those for one unit, observed anew: together they may quantize what none of them does alone."""
        choices = self._without(without)
        return self._remedies.observed(self._effects.of(choices), choices)

    def _without(self, unit: Unit | None) -> Choices:
        parts: Iterable[Choices] = (choices for key, (_, choices) in self._parts.items() if key != unit)
        return merged([self._base, *parts])


def _decibels(excess: Excess) -> str:
    where = f"{excess.output!r}"
    return f"{where} not finite" if excess.decibels == -math.inf else f"{where} {excess.decibels:.1f} dB"
