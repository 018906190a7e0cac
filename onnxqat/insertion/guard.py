"""The guard: where an output of a freshly quantized model falls below a floor, its culprits are found and relieved.

It starts only below the floor, and is bounded by a number of runs, not by time, so that the same input gives the same
file on every machine. All its runs go through one session (:mod:`onnxqat.insertion.switchboard`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import onnx_ir as ir

from onnxqat.calibration.resolve import Resolved
from onnxqat.data.data import Data
from onnxqat.errors import ModelError
from onnxqat.insertion import allowed, refusals, suspicion, trial
from onnxqat.insertion.change import Change
from onnxqat.insertion.choices import NONE, Choices
from onnxqat.insertion.placing import Calibrated
from onnxqat.insertion.refusals import Refusal
from onnxqat.insertion.relief import Relief, affordable_runs
from onnxqat.insertion.trial import Trial
from onnxqat.passes import _base
from onnxqat.passes.raise_opset import RaiseOpset
from onnxqat.placement.table_overrides import Overrides
from onnxqat.runtime.non_finite import Origin
from onnxqat.types import QuantPlan, Remark
from onnxqat.verdict import AMBER_SQNR

RUNS, MOST = 48, 144
"""Runs of the switchboard at most, all rounds together; as many as the second where they take no longer than the first may
be expected to, see :func:`onnxqat.insertion.relief.affordable`."""

ROUNDS = 6
"""Largest number of files that are made: each trial finds one origin of NaN or infinities, or what costs most behind the
changes of the one before."""

FEWEST = 10
"""Runs with which a round is begun."""

FEWER = 2
"""Times that the changes of a round are halved, where the file with all of them is no better: half, then a quarter."""

GAIN, MORE = 1.0, 0.3
"""Decibels that the changes of the first round have to bring together, less is no reason to depart from the table; and those
of each later one."""

Place = Callable[[ir.Model, QuantPlan, Resolved, list[Remark]], None]


@dataclasses.dataclass(frozen=True)
class Guarded:
    """Result of the guard.

    Attributes:
        before: the trial of the file as table and calibration gave it; None where that held NaN or infinities.
        changes: in the order in which they were made; empty where nothing helped.
        runs: number of runs, of a few samples each.
        integer_nodes: integer nodes of the file before; `cost` of a change is the number that it takes from them.
    """

    before: Trial | None
    changes: tuple[Change, ...]
    runs: int
    integer_nodes: int


@dataclasses.dataclass(frozen=True, eq=False)
class Made:
    """A quantized model with its plan, its trial, and the result of the guard."""

    model: ir.Model
    plan: QuantPlan
    trial: Trial | None = None
    guarded: Guarded | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class _File:
    """A quantized model with its plan and parameters, the result of its trial, and remarks."""

    model: ir.Model
    plan: QuantPlan
    resolved: Resolved
    tried: Trial | Origin | None
    remarks: tuple[Remark, ...] = ()


class Guard:
    """Makes the file, tries it, and mends it.

    Args:
        original: the float model as it was given.
        calibrated: what the file is made from.
        data: calibration data.
        overrides: user choices.
        place: inserts the quantizers of a plan into a prepared model, in place.
        mends: whether anything is done about what the trial shows.
        finished: returns a model as it is written, where that differs; see :func:`onnxqat.insertion.trial.attempt`.
    """

    def __init__(
        self,
        original: ir.Model,
        calibrated: Calibrated,
        data: Data,
        overrides: Overrides,
        place: Place,
        *,
        mends: bool,
        finished: trial.Finished | None = None,
    ) -> None:
        self._original, self._calibrated, self._data, self._place = original, calibrated, data, place
        self._allowed = allowed.of(overrides, calibrated.chosen, calibrated.model)
        self._finished = finished
        self._mends, self._runs, self._why = mends, 0, "the guard could not look at it"

    def make(self, remarks: list[Remark], *, tries: bool) -> Made:
        """The file to write; the model that was calibrated becomes it where nothing can be made twice.

        Args:
            remarks: what is found is added: each change, or why there is none.
            tries: whether the data mean something.

        Raises:
            CheckError: ``quantized-not-finite`` where NaN and infinities stay.
        """
        own: list[Remark] = []  # of this file, which another may take the place of
        plan, resolved = self._calibrated.settle(own)
        mends = self._mends and tries and self._data.repeatable
        model = self._calibrated.model.clone() if mends else self._calibrated.model
        self._place(model, plan, resolved, own)
        if not tries:
            remarks.extend(own)
            return Made(model, plan)
        if self._mends and not mends:
            text = "no output was looked at, since the calibration data can be read only once"
            own.append(Remark(text, source="guard", concern="result"))
        tried = trial.attempt(self._original, model, self._data, own, self._finished)
        first = _File(model, plan, resolved, tried, tuple(own))
        if not mends or _is_well(first.tried):
            remarks.extend(own)
            return Made(model, plan, self._named(first))
        noticed: list[Remark] = []
        best, changes, total = self._repaired(first, noticed)
        changes = _as_files_show(changes, first, best)
        remarks.extend(dict.fromkeys((*self._calibrated.found.remarks, *best.remarks, *noticed)))
        remarks.extend(change.remark(total) for change in changes)
        if isinstance(best.tried, Trial) and best.tried.worst < AMBER_SQNR:
            remarks.append(
                Remark(f"the worst output is left at {best.tried.worst:.1f} dB: {self._why}", (), "guard", "result")
            )
        before = None if isinstance(first.tried, Origin) else first.tried
        return Made(best.model, best.plan, self._named(best), Guarded(before, tuple(changes), self._runs, total))

    def _named(self, file: _File) -> Trial | None:
        """The trial of the file to write, with what costs most where an output is noisy; raise if values are not finite."""
        if isinstance(file.tried, Origin):
            raise trial.refusal(file.tried)
        if file.tried is None or not file.tried.noisy:
            return file.tried
        return suspicion.named(file.tried, file.model, self._calibrated.model, self._data)

    def _repaired(self, first: _File, remarks: list[Remark]) -> tuple[_File, Sequence[Change], int]:
        """The best file that was found, the changes that led to it, and the integer nodes of the first."""
        best, choices, changes, total = first, NONE, list[Change](), None
        refused: list[Refusal] = []
        limit = affordable_runs(self._calibrated.work, RUNS, MOST)
        for _ in range(ROUNDS):
            if limit - self._runs < FEWEST:
                break
            relief = Relief(self._calibrated, best.plan, best.resolved, choices, self._data, self._allowed, total)
            total = relief.integer_nodes
            try:
                found = relief.search(best.model, best.tried, limit - self._runs)
            except ModelError as error:
                self._why = f"the guard could not run, {error.message}"
                break
            self._runs += relief.runs
            refused += relief.refused
            self._why = relief.why
            if not found:
                break
            made, found = self._better(relief, found, best.tried, MORE if changes else GAIN)
            if made is None:
                if self._allowed.types:
                    self._why = "what relieves its quantizers does not help in the file itself, and was taken back"
                break
            best, found = self._proven(relief, made, found) if len(found) > 1 else (made, found)
            choices, changes = relief.choices, [*changes, *found]
            if _is_well(best.tried):
                break
        best, more = self._relieved_of_many(best, choices, changes, total)
        changed = {change.tensor for change in (*changes, *more) if change.kind != "range"}
        remarks.extend(refusals.remarks(each for each in refused if each.tensor not in changed))
        return best, [*changes, *more], total or 0

    def _relieved_of_many(
        self, best: _File, choices: Choices, changes: Sequence[Change], total: int | None
    ) -> tuple[_File, Sequence[Change]]:
        """The file without quantizers that together bring much of the noise that is left, and these changes; none if no better.

        Args:
            best: the file so far.
            choices: that it was made with.
            changes: that led to it.
            total: integer nodes of the first file.
        """
        if _is_well(best.tried) or not isinstance(best.tried, Trial) or not self._allowed.types:
            return best, ()
        relief = Relief(self._calibrated, best.plan, best.resolved, choices, self._data, self._allowed, total)
        found = relief.relieve_many(best.model, best.tried)
        made, found = self._better(relief, found, best.tried, MORE if changes else GAIN) if found else (None, [])
        if made is None:
            return best, ()
        self._why = relief.why
        return made, found

    def _better(
        self, relief: Relief, found: list[Change], old: Trial | Origin | None, gain: float
    ) -> tuple[_File | None, list[Change]]:
        """The file with all changes, or with half or a quarter of them, those that relieve of most; None if no better.

        Each helps alone, in switches with weights that were rounded for the file before. Beside each other, and with weights
        rounded anew, the many that bring little may cost more than the few that bring much.
        """
        for _ in range(FEWER + 1):
            made = self._made(relief.choices)
            if _is_better(made.tried, old, gain):
                return made, found
            if len(found) == 1:
                break
            found = relief.keep(len(found) // 2)
        return None, found

    def _proven(self, relief: Relief, made: _File, changes: Sequence[Change]) -> tuple[_File, list[Change]]:
        """`made` without those of `changes` that do not help in the file, where switches do not show that they do.

        Switches leave out biases and weights that were rounded on data, and runs may be used up before all are measured.
        """
        kept: list[Change] = []
        for number, change in enumerate(changes):
            if not change.is_doubtful or len(kept) + len(changes) - number == 1:
                kept.append(change)
                continue
            other = self._made(relief.choices_without(change))
            with_it, without = made.tried, other.tried
            if not isinstance(with_it, Trial) or not isinstance(without, Trial):
                kept.append(change)
            elif without.worst >= min(with_it.worst, AMBER_SQNR):
                relief.take_back(change)
                made = other
            else:
                kept.append(_between(change, without, with_it))
        return made, kept

    def _made(self, choices: Choices) -> _File:
        """The file that `choices` lead to, tried."""
        remarks: list[Remark] = []
        plan = self._calibrated.plan(choices)
        resolved = self._calibrated.resolve(plan, choices)
        model = self._calibrated.model.clone()
        if choices.widths:
            _base.rewrite(model, [RaiseOpset.for_codes(resolved.placements)])
        self._place(model, plan, resolved, remarks)
        tried = trial.attempt(self._original, model, self._data, remarks, self._finished)
        return _File(model, plan, resolved, tried, (*plan.remarks, *resolved.remarks, *remarks))


def _as_files_show(changes: Sequence[Change], first: _File, best: _File) -> Sequence[Change]:
    """Give a sole change the effect that the files before and after it show.

    Switches leave out biases, and weights are rounded on data for all that is in front of them: they can show a loss where
    the file gains. Of several changes, the file shows what all of them lead to.
    """
    if not isinstance(best.tried, Trial):
        return changes
    if len(changes) == 1 and isinstance(first.tried, Trial):
        return [_between(changes[0], first.tried, best.tried)]
    after = best.tried.sqnr_db
    return [
        dataclasses.replace(c, with_db=after.get(c.output, c.with_db)) if math.isnan(c.with_db) else c for c in changes
    ]


def _between(change: Change, without: Trial, with_it: Trial) -> Change:
    """`change` with the effect on its output that two files show, or on the worst output of the first."""
    before, after, output = without.sqnr_db, with_it.sqnr_db, change.output
    if not change.with_db > change.without_db:
        output = min(before, key=before.__getitem__, default=output)
    if output not in before or output not in after:
        return change
    return dataclasses.replace(change, output=output, without_db=before[output], with_db=after[output])


def _is_well(tried: Trial | Origin | None) -> bool:
    """Check whether nothing is to be done: every output is above the floor, or there was no trial."""
    return tried is None or (isinstance(tried, Trial) and tried.worst >= AMBER_SQNR)


def _is_better(new: Trial | Origin | None, old: Trial | Origin | None, gain: float) -> bool:
    """Check whether `new` justifies the changes: finite, above the floor, `gain` dB more, or a new origin."""
    if new is None:
        return False
    if isinstance(new, Origin):
        return isinstance(old, Origin) and new.tensor != old.tensor
    if not isinstance(old, Trial):
        return True
    return new.worst >= AMBER_SQNR or new.worst >= old.worst + gain
