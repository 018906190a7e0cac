"""Steps with a check: one that is not finite is explained, kept in a black box, and ends the run or is skipped.

On a CPU every step is checked before the optimizer uses its gradients. On a GPU that would make each step wait, so
several steps are done unchecked; where one of them was not finite, the run goes back to the step before the first of
them and does them again one by one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxqat.errors import QatError
from onnxqat.training.callbacks.callback import StepRecord
from onnxqat.training.data.batches import Batch
from onnxqat.training.loop import black_box
from onnxqat.training.loop.checkpoint import Stateful
from onnxqat.training.loop.non_finite import Finding, find
from onnxqat.training.loop.pending import Pending, PendingSteps
from onnxqat.training.loop.progress import Progress
from onnxqat.training.loop.random_state import RandomState
from onnxqat.training.loop.scale_history import ScaleHistory
from onnxqat.training.loop.snapshot import Forward, Snapshot, touched
from onnxqat.training.loop.step import Step
from onnxqat.training.optim.moving_average import MovingAverage
from onnxqat.training.optim.schedule import Schedule, set_rates

OVERFLOWS = 40
"""Most steps in a row that may overflow in float16: after these the loss scale, halved each time, is below one."""


@dataclasses.dataclass(kw_only=True)
class GuardedSteps:
    """Does the steps of a run.

    Attributes:
        step: computes gradients and updates the parameters.
        schedule: of the learning rates.
        progress: where the run stands; counted on here.
        average: moving average of the parameters.
        stateful: what else has a state.
        tell: called with the steps that are done and finite.
        restored: called when steps were undone.
        box: folder for the black box of the first step that is not finite; None writes none.
        allowed: how many such steps are left out before the run ends.
        settings: of the run, for the black box.
    """

    step: Step
    schedule: Schedule
    progress: Progress
    average: MovingAverage | None
    stateful: Mapping[str, Stateful]
    tell: Callable[[Sequence[StepRecord]], None]
    restored: Callable[[], None]
    box: Path | None = None
    allowed: int = 0
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self._pending = PendingSteps(self.step.device)
        self._one_by_one = self._pending.interval == 1
        self.history = ScaleHistory(self.step.module)
        self._touched = touched(self.step.module)
        self._blind: list[Sequence[Batch]] = []
        self._overflows = 0

    def do(self, batches: Sequence[Batch]) -> None:
        """One step on these batches.

        Raises:
            QatError: ``training-diverged``.
        """
        before: Forward | None = None
        if self._one_by_one:
            before = Forward(self._touched)
        else:
            if not self._blind:
                self._start = Snapshot(self.step, self.average, self.stateful, self.progress)
            self._blind.append(batches)
        number = self.progress.step
        self.history.add(number)
        rates = set_rates(self.step.optimizer, self.schedule.factor(number))
        for callback in self.step.callbacks:
            callback.before_step(number)
        loss, norm = self.step.gradients(batches, number, keep=before is not None)
        samples = sum(batch.all_samples for batch in batches)
        self._pending.add(Pending(number + 1, self.progress.epoch, loss, norm, rates, samples))
        if before is None:
            self._update()
            if self._pending.due:
                self.settle()
            return
        record = self._pending.take()[0]
        if self._is_bad(record):
            self._leave_out(record, before)
        else:
            self._update()
            self._count([record])

    def settle(self) -> None:
        """Check the steps that were done unchecked; go back where one was not finite.

        Raises:
            QatError: ``training-diverged``.
        """
        records = self._pending.take()
        blind, self._blind = self._blind, []
        if not any(self._is_bad(record) for record in records):
            self._count(records)
            return
        self._start.restore()
        self.restored()
        self.history.forget(self.progress.step)
        self._one_by_one = True
        for batches in blind:
            self.do(batches)
        self._one_by_one = False

    def _update(self) -> None:
        number = self.progress.step
        for callback in self.step.callbacks:
            callback.after_backward(number)
        self.step.update()
        for callback in self.step.callbacks:
            callback.after_step(number)
        self._advance()
        if self.average is not None:
            self.average.update(self.step.module, self.progress.step)

    def _advance(self) -> None:
        self.progress.step += 1
        self.progress.step_in_epoch += 1

    def _count(self, records: Sequence[StepRecord]) -> None:
        self.progress.loss_sum += sum(record.loss for record in records)
        if records:
            self.tell(records)

    def _is_bad(self, record: StepRecord) -> bool:
        """Check whether a step was not finite; a few overflows in float16 pass, as the loss scaler skips such steps."""
        overflow = not math.isfinite(record.gradient_norm)
        self._overflows = self._overflows + 1 if overflow else 0
        forgiven = self.step.scaler.is_enabled() and self._overflows <= OVERFLOWS
        return not math.isfinite(record.loss) or (overflow and not forgiven)

    def _leave_out(self, record: StepRecord, before: Forward) -> None:
        """Undo the step, keep what is needed to see it again, and go on without it or end the run."""
        after = RandomState.capture()
        ends = self.progress.skipped >= self.allowed
        boxed = self.box is not None and self.progress.skipped == 0
        finding = find(self.step, self.step.seen) if ends or boxed else None
        if finding is not None and boxed and self.box is not None:
            before.restore()
            black_box.write(self.box, self, record, finding, before.random)
        if finding is not None and ends:
            raise self._error(record, finding)
        after.restore()
        before.restore()
        self.progress.skipped += 1
        self.progress.skipped_in_epoch += 1
        if self.step.scaler.is_enabled():
            self.step.scaler.update()
        self._advance()

    def _error(self, record: StepRecord, finding: Finding) -> QatError:
        kept = "" if self.box is None else f"; 'onnxqat replay {self.box} MODEL' shows the step again"
        what = f"the loss is {record.loss}"
        if math.isfinite(record.loss):
            what = f"the norm of the gradients is {record.gradient_norm}"
        here = f"of process {self.step.world.rank}, " if self.step.world.size > 1 else ""
        left_out = f", after {self.progress.skipped} steps that were left out" if self.progress.skipped else ""
        remedy = "lower the learning rate, or that of the scales, or lengthen the warm-up"
        if finding.kind == "teacher":
            remedy = "no learning rate helps: look at the teacher, and at its input, in float"
        return QatError(
            "training-diverged",
            f"{what} at step {record.step - 1}; {here}{finding}{left_out}",
            hint=f"{remedy}{kept}",
        )
