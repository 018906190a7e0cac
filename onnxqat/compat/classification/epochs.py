"""Meters, training accuracy and files of each epoch of a run, and the rest of a resumed schedule."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import onnx
import torch
from torch import Tensor

from onnxqat.bridge.module import OnnxModule
from onnxqat.compat.classification.files import Files, packed_model
from onnxqat.compat.classification.meters import Log, Meters, Timed, correct
from onnxqat.compat.classification.settings import Settings
from onnxqat.training.callbacks.callback import Callback, Run, StepRecord
from onnxqat.training.objective.losses import Objective
from onnxqat.training.optim.schedule import Schedule


class Watched:
    """A loss that also counts how many labels were hit, without waiting for a GPU.

    Attributes:
        hits: for each batch (samples, hits among the first, among the first five), the oldest first.
    """

    def __init__(self, loss: Objective) -> None:
        self.loss = loss
        self.hits: list[tuple[int, Tensor]] = []

    def __call__(self, results: Sequence[Tensor], labels: Tensor | None, teacher: Any) -> Tensor:
        if labels is not None and labels.ndim == 1:
            with torch.no_grad():
                self.hits.append((len(labels), torch.stack(correct(results[0].float(), labels))))
        return self.loss(results, labels, teacher)


class Shifted:
    """The rest of a schedule, from step `offset` on."""

    def __init__(self, schedule: Schedule, offset: int) -> None:
        self.schedule, self.offset = schedule, offset
        self.total_steps = schedule.total_steps - offset

    def factor(self, step: int) -> float:
        """See :class:`onnxqat.training.optim.schedule.Schedule`."""
        return self.schedule.factor(step + self.offset)

    def __getattr__(self, name: str) -> Any:
        # observe, state_dict and load_state_dict where the schedule has them
        return getattr(self.__dict__["schedule"], name)


class Epochs(Callback):
    """Prints the meters of training and writes the files after each epoch.

    Args:
        settings: of the run.
        files: where it writes.
        log: gets the means of each epoch.
        say: prints a line.
        watched: the loss that counts hits.
        best: best score of an earlier part of the run.

    Attributes:
        models: the module, the model that it was made from, and the float model of a run in float.
        best: best score so far.
    """

    name = "meters"
    models: tuple[OnnxModule, onnx.ModelProto, onnx.ModelProto | None]

    def __init__(
        self,
        settings: Settings,
        files: Files,
        log: Log,
        say: Callable[[str], None],
        watched: Watched,
        best: float | None,
    ) -> None:
        self.settings, self.files, self.log, self.say, self.watched = settings, files, log, say, watched
        self.best = best
        self._meters: Meters | None = None
        self._due: tuple[dict[str, Any], bool] | None = None
        self._times: list[float] = []
        self._last: float | None = None

    def start(self, run: Run) -> None:
        """See the base class."""
        self._run, self._timed = run, _timed(run.batches)

    def before_step(self, step: int) -> None:
        """See the base class."""
        self._write_due()
        if self._last is None:  # of an epoch's first batch only the wait for it is known
            waited = self._timed.waited if self._timed is not None else []
            self._last = time.perf_counter() - (waited[-1] if waited else 0.0)

    def after_step(self, step: int) -> None:
        """See the base class."""
        now = time.perf_counter()
        self._times.append(now - (self._last or now))
        self._last = now

    def checked(self, records: Sequence[StepRecord]) -> None:
        """See the base class."""
        for record in records:
            if self._meters is None:
                title = f"Epoch: [{record.epoch + self.settings.start_epoch}]"
                self._meters = Meters(title, self._run.batches.steps, self.settings.print_freq, self.say)
            samples, hits = self.watched.hits.pop(0) if self.watched.hits else (0, torch.zeros(2))
            top1, top5 = (100.0 * float(h) / max(samples, 1) for h in hits.tolist())
            waited = self._timed.waited if self._timed is not None else []
            self._meters.batch(
                seconds=self._times.pop(0) if self._times else 0.0,
                data=waited.pop(0) if waited else 0.0,
                loss=record.loss,
                top1=top1,
                top5=top5,
                samples=samples,
            )

    def after_epoch(self, epoch: int, loss: float, score: float) -> None:
        """See the base class."""
        number = epoch + self.settings.start_epoch
        better = self.best is None or score > self.best
        self.best = score if self.best is None else max(self.best, score)
        if self._meters is not None:
            self.log.write(event="train", epoch=number, **self._meters.means)
        self._meters, self._times, self._last = None, [], None
        self.watched.hits.clear()
        if not self._run.world.writer:
            return
        module, initial, float_model = self.models
        self.files.write_onnx(module, float_model, best=better)
        held = {
            "epoch": number,
            "arch": self.settings.arch,
            "best_acc1": self.best,
            "state_dict": {key: value.detach().cpu() for key, value in module.state_dict().items()},
            "model": packed_model(initial),
        }
        self._due = held, better

    def finish(self) -> None:
        """See the base class."""
        self._write_due()

    def _write_due(self) -> None:
        """Write the checkpoint of an epoch once the loop's own is on disk, which it holds."""
        if self._due is not None:
            held, best = self._due
            self.files.write_checkpoint(held, best=best)
            self._due = None


def _timed(batches: Any) -> Timed | None:
    """The timed batches, behind whatever gives each process its part."""
    while not isinstance(batches, Timed) and hasattr(batches, "_source"):
        batches = batches._source  # noqa: SLF001 - shards have no other way in
    return batches if isinstance(batches, Timed) else None
