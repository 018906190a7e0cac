"""Scores of a run, and the weights of the best of them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from onnxqat.training import checkpoint
from onnxqat.training.batches import Batch
from onnxqat.training.checkpoint import Progress
from onnxqat.training.distributed.tensors import local
from onnxqat.training.moving_average import MovingAverage
from onnxqat.training.step import Step


@dataclasses.dataclass(kw_only=True)
class Best:
    """Scores the module at the start and after each epoch, and keeps what is best.

    Attributes:
        step: knows the module and its loss.
        evaluate: score of the module, higher is better.
        scored: batches whose mean loss, negated, is the score where there is no `evaluate`.
        average: moving average; scored and kept in place of the weights.
        file: where the best is written; None keeps it in memory only.
        state: state dict of the best on CPU, of shards those of this process; empty before anything was kept.
    """

    step: Step
    evaluate: Callable[[nn.Module], float] | None = None
    scored: Sequence[Batch] = ()
    average: MovingAverage | None = None
    file: Path | None = None
    state: dict[str, Tensor] = dataclasses.field(default_factory=dict)

    @property
    def has_score(self) -> bool:
        """Whether the module itself is scored, so that its start can be compared with each epoch."""
        return self.evaluate is not None or bool(self.scored)

    def rate(self, progress: Progress) -> float:
        """Score the module as it is, or its average after an epoch; keep it where it is the best so far.

        An epoch in progress, where a run ends, counts as one that is done.

        Without `evaluate` and `scored`, the score is minus the epoch's mean training loss. Scored by the loss on a
        few samples, neighbouring epochs rank by chance, and the last, with the lowest learning rate, is the one to
        trust: each epoch that beats the start is then kept in place of the one before.
        """
        epoch = progress.epoch + bool(progress.step_in_epoch)
        with self._averaged() if epoch else contextlib.nullcontext():
            for part in self.step.parts:
                part.before_score()
            score = self._score() if self.has_score else -progress.losses[-1]
            progress.score, progress.scored_step = score, progress.step
            if epoch == 0:
                progress.start_score = score
            bar = progress.start_score if self.evaluate is None and self.scored else progress.best_score
            beats = bar is None or epoch == 0 or score > bar
            if beats and all(part.may_keep for part in self.step.parts):
                progress.best_score, progress.best_epoch = score, epoch
                self._keep()
                if self.file is not None:
                    writes = self.step.world.writer
                    checkpoint.save(self.file, self.step.module, progress=progress, writes=writes)
        return score

    def _score(self) -> float:
        module = self.step.module
        module.eval()
        with torch.no_grad():
            score = self.evaluate(module) if self.evaluate is not None else -self.step.mean_loss(self.scored)
        module.train()
        return self.step.world.agreed(float(score))

    def _averaged(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.average is None else self.average.applied(self.step.module)

    def _keep(self) -> None:
        held = self.step.module.state_dict()
        self.state = {key: local(value.detach()).to("cpu", copy=True) for key, value in held.items()}

    def keep_last(self) -> None:
        """Keep what there is at the end of a run that nothing was kept of."""
        if not self.state:
            with self._averaged():
                self._keep()

    def resume(self, progress: Progress) -> None:
        """Read the best of an earlier run from its file."""
        if progress.best_score is not None and self.file is not None and self.file.exists():
            self.state = checkpoint.weights(self.file, self.step.module)
            # The best of an epoch is written before that epoch's checkpoint, so it may be of one that is done again.
            kept = checkpoint.standing(self.file)
            progress.best_score, progress.best_epoch = kept.best_score, kept.best_epoch
