"""Training loop in plain torch: epochs, steps, checkpoints, callbacks; :mod:`onnxqat.training.loop.step` does a step."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from onnxqat.errors import DataError, QatError
from onnxqat.graph import atomic, files_read
from onnxqat.training.callbacks.callback import Callback, StepRecord
from onnxqat.training.data.batches import Batch, Batches
from onnxqat.training.distributed.process_context import ProcessContext
from onnxqat.training.execution.execution import Execution
from onnxqat.training.loop import checkpoint
from onnxqat.training.loop.best import Best
from onnxqat.training.loop.guarded_steps import GuardedSteps
from onnxqat.training.loop.progress import Progress
from onnxqat.training.loop.step import Augment, Step, Teacher
from onnxqat.training.objective.losses import Objective
from onnxqat.training.optim.moving_average import MovingAverage
from onnxqat.training.optim.schedule import Schedule

CHECKPOINTS = ("last.safetensors", "best.safetensors")
"""Files that a run writes into its folder."""


@dataclasses.dataclass(frozen=True)
class Report:
    """Report to a progress callback after each step: all numbers are of the steps done so far."""

    step: int
    total_steps: int
    epoch: int
    loss: float
    learning_rate: float


@dataclasses.dataclass
class Fitted:
    """Result of :meth:`Loop.run`.

    Attributes:
        progress: steps, epochs, losses, best epoch.
        best: state dict of the best epoch on CPU; of the last when no epoch was finished.
    """

    progress: Progress
    best: dict[str, Tensor]


@dataclasses.dataclass(kw_only=True)
class Loop:
    """Everything that one run consists of; :meth:`run` runs it.

    Attributes:
        module: what is trained, called with the inputs in the order of its ``input_names`` (or of the batch).
        batches: the training data; of this process, where several train together.
        loss: what is minimized.
        optimizer: over the module's parameters.
        schedule: learning rate by step; its ``total_steps`` end the run.
        forward: called for outputs in place of `module`, of which it is a view; None: `module` itself.
        teacher: gives the outputs to imitate; run in ``no_grad``.
        augment: applied to the inputs of each batch, on the device, before student and teacher see them; draws from
            torch's random generator.
        execution: how a step is computed.
        average: moving average; evaluated and kept as the best in place of the weights.
        evaluate: score of the module before the first step and after each epoch, higher is better.
        scored: batches whose mean loss, negated, is the score where there is no `evaluate`: the last epoch that beats
            the start counts as the best. Without either, the score is minus the epoch's mean training loss.
        score_every: steps between two calls of `evaluate`, which is then called at the end of the run too, but not at
            that of an epoch; callbacks are told the latest score there.
        target: score of what is kept at which the run ends.
        progress: called after each step that was looked at: on a GPU some steps later.
        folder: ``last.safetensors`` (after each epoch and at the end) and ``best.safetensors`` are written here.
        save_every: steps between two writings of ``last.safetensors`` within an epoch; None writes none there.
        black_box: folder for the first step whose loss or gradient is not finite (:mod:`onnxqat.training.loop.black_box`).
        skip_non_finite: so many such steps are left out; the next ends the run.
        settings: what a resumed run has to agree with.
        callbacks: called at points of the run.
        world: the processes that train together.
    """

    module: nn.Module
    batches: Batches
    loss: Objective
    optimizer: Optimizer
    schedule: Schedule
    forward: nn.Module | None = None
    teacher: Teacher | None = None
    augment: Augment | None = None
    execution: Execution = dataclasses.field(default_factory=Execution)
    average: MovingAverage | None = None
    evaluate: Callable[[nn.Module], float] | None = None
    scored: Sequence[Batch] = ()
    score_every: int | None = None
    target: float | None = None
    progress: Callable[[Report], None] | None = None
    folder: Path | None = None
    save_every: int | None = None
    black_box: Path | None = None
    skip_non_finite: int = 0
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    callbacks: Sequence[Callback] = ()
    world: ProcessContext = dataclasses.field(default_factory=ProcessContext)

    @property
    def standing(self) -> Progress:
        """Progress of the run, for its callbacks."""
        return self._state

    @property
    def has_score(self) -> bool:
        """Check whether the module itself is scored, so that its start can be compared with each epoch."""
        return self.evaluate is not None or bool(self.scored)

    def run(self, *, resume: bool = False) -> Fitted:
        """Train until the schedule ends.

        Args:
            resume: go on from ``last.safetensors`` where it exists; the run continues bit for bit on CPU.

        Raises:
            QatError: ``training-diverged`` names the step and the first value that is not finite;
                ``checkpoint-mismatch``.
            DataError: what is wrong with a batch.
        """
        if self.folder is not None:
            atomic.make_folder(self.folder)
            for name in CHECKPOINTS:
                files_read.plan(self.folder / name, "a checkpoint")
        self._prepare()
        if resume:
            self._resume()
        try:
            self._run()
        finally:
            for callback in self.callbacks:
                callback.finish()
        self.module.eval()
        self.execution.restore(self.module)
        self._best.keep_last()
        return Fitted(self._state, self._best.state)

    def _prepare(self) -> None:
        """Place the module, and make the step, the keeper of the best and the guarded steps of this run."""
        self.execution.place(self.module)
        self._state = Progress()
        self._step = Step(
            module=self.module,
            forward=self.module if self.forward is None else self.forward,
            loss=self.loss,
            optimizer=self.optimizer,
            teacher=self.teacher,
            augment=self.augment,
            execution=self.execution,
            callbacks=self.callbacks,
            world=self.world,
        )
        self._best = Best(
            step=self._step,
            evaluate=self.evaluate,
            scored=self.scored,
            average=self.average,
            file=None if self.folder is None else self.folder / "best.safetensors",
        )
        self._steps = GuardedSteps(
            step=self._step,
            schedule=self.schedule,
            progress=self._state,
            average=self.average,
            stateful=self._stateful(),
            tell=self._tell,
            restored=self._restored,
            box=self.black_box,
            allowed=self.skip_non_finite,
            settings=self.settings,
        )

    def _restored(self) -> None:
        for callback in self.callbacks:
            callback.restored(self)

    def _run(self) -> None:
        state = self._state
        self._limited = state.limited_scales
        self.world.reseed(state.step)
        for callback in self.callbacks:
            callback.start(self)
        if state.step == 0 and self.has_score:
            self._best.rate(state)
        self.module.train()
        while state.step < self.schedule.total_steps and not self._is_enough:
            self._run_epoch()
            self._count_limits()
            if state.step_in_epoch == 0:
                self._finish_epoch()
            elif state.step >= self.schedule.total_steps and self.has_score and state.scored_step < state.step:
                self._best.rate(state)
            self._save()
            self.world.reseed(state.step)

    @property
    def _is_enough(self) -> bool:
        """Check for early stopping: the best score has reached the target, in all processes alike, as scores are."""
        best = self._state.best_score
        return self.target is not None and best is not None and best >= self.target

    def _run_epoch(self) -> None:
        """Steps up to the end of the epoch or of the run."""
        state, together = self._state, self.execution.accumulate
        source = itertools.islice(self.batches.epoch(state.epoch), state.step_in_epoch * together, None)
        while batches := list(itertools.islice(source, together)):
            if state.step >= self.schedule.total_steps:
                # There is more: the epoch is not finished.
                self._steps.settle()
                return
            self._steps.do(batches)
            if self.score_every is not None and state.step % self.score_every == 0:
                self._steps.settle()
                self._rate()
                if self._is_enough:
                    return
            if self.save_every is not None and state.step % self.save_every == 0:
                self._steps.settle()
                self._count_limits()
                self._save()
                self.world.reseed(state.step)
        self._steps.settle()
        if not state.step_in_epoch:
            raise DataError("data-missing", f"the training data gave no batch in epoch {state.epoch + 1}")
        state.losses.append(state.loss_sum / max(1, state.step_in_epoch - state.skipped_in_epoch))
        state.epoch += 1
        state.step_in_epoch, state.skipped_in_epoch, state.loss_sum = 0, 0, 0.0

    def _tell(self, records: Sequence[StepRecord]) -> None:
        """Tell callbacks, and `progress`, about steps that are done."""
        for callback in self.callbacks:
            callback.checked(records)
        if self.progress is not None and self.world.writer:
            for record in records:
                rate = next(iter(record.rates.values()))
                self.progress(Report(record.step, self.schedule.total_steps, record.epoch, record.loss, rate))

    def _count_limits(self) -> None:
        self._state.limited_scales = self._limited + int(self._step.guard.limited)

    def _finish_epoch(self) -> None:
        state = self._state
        ends = state.step >= self.schedule.total_steps and state.scored_step < state.step
        if self.score_every is None or ends:
            self._rate()
        assert state.score is not None
        for callback in self.callbacks:
            callback.after_epoch(state.epoch, state.losses[-1], state.score)

    def _rate(self) -> None:
        """Score the module as it is, and tell a schedule that follows the score."""
        score = self._best.rate(self._state)
        observe = getattr(self.schedule, "observe", None)
        if observe is not None:
            observe(score)

    def _save(self) -> None:
        if self.folder is None:
            return
        checkpoint.save(
            self.folder / "last.safetensors",
            self.module,
            optimizer=self.optimizer,
            average=None if self.average is None else self.average.values,
            progress=self._state,
            settings=self.settings,
            stateful=self._stateful(),
            writes=self.world.writer,
        )

    def _stateful(self) -> dict[str, checkpoint.Stateful]:
        """List the objects whose state checkpoints hold: the schedule, the scaler of the loss and the callbacks."""
        stateful: dict[str, Any] = {}
        for callback in self.callbacks:
            name = callback.name or type(callback).__name__
            # Two of one name are told apart by their order, which a resumed run has too.
            alike = sum(key.partition("#")[0] == f"part:{name}" for key in stateful)
            stateful[f"part:{name}#{alike + 1}" if alike else f"part:{name}"] = callback
        if self._step.scaler.is_enabled():
            stateful["scaler"] = self._step.scaler
        if hasattr(self.schedule, "state_dict"):
            stateful["schedule"] = self.schedule
        return stateful

    def _resume(self) -> None:
        """Load the last checkpoint where there is one; all processes have to see the same."""
        file = None if self.folder is None else self.folder / "last.safetensors"
        found = file is not None and file.exists()
        if found != bool(self.world.agreed(float(found))):
            raise QatError(
                "checkpoint-mismatch",
                f"process {self.world.rank} and process 0 do not see the same files in {self.folder}",
                hint="the checkpoint folder has to be on a disk that all machines share",
            )
        if file is None or not found:
            return
        stands = checkpoint.load(
            file,
            self.module,
            optimizer=self.optimizer,
            average=None if self.average is None else self.average.values,
            settings=self.settings,
            stateful=self._stateful(),
            random=True,
        )
        for field in dataclasses.fields(stands):
            setattr(self._state, field.name, getattr(stands, field.name))
        self._best.resume(self._state)
