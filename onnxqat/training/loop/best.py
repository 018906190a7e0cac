"""Scores of a run, and the weights of the best of them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from onnxqat.training.data.batches import Batch
from onnxqat.training.distributed.tensors import local
from onnxqat.training.loop import checkpoint
from onnxqat.training.loop.collapse import collapsed
from onnxqat.training.loop.progress import Progress
from onnxqat.training.loop.sample_losses import standard_error
from onnxqat.training.loop.step import Step
from onnxqat.training.optim.moving_average import MovingAverage


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
        """Check whether the module itself is scored, so that its start can be compared with each epoch."""
        return self.evaluate is not None or bool(self.scored)

    def rate(self, progress: Progress) -> float:
        """Score the module as it is, or its average after an epoch; keep it where it is the best so far.

        An epoch in progress, where a run ends, counts as one that is done.

        Without `evaluate` and `scored`, the score is minus the epoch's mean training loss. Scored by the loss on a
        few samples, neighbouring epochs rank by chance, and the last, with the lowest learning rate, is the one to
        trust: each epoch that has more than half of the best gain over the start is kept in place of the one before.
        A gain within its own standard error over the samples is chance and no gain.
        An epoch whose outputs have become constants, or whose score is not a number, is not kept.
        """
        epoch = progress.epoch + bool(progress.step_in_epoch)
        with self._averaged() if epoch else contextlib.nullcontext():
            for callback in self.step.callbacks:
                callback.before_score()
            unscored = None if self.has_score else (-progress.losses[-1], 0.0, False)
            score, chance, is_constant = unscored or self._score(progress, epoch)
            progress.score, progress.scored_step = score, progress.step
            if epoch == 0:
                progress.start_score = score
            beats = epoch == 0 or progress.best_score is None or score > self._bar(progress, chance)
            if beats and not is_constant and all(callback.may_keep for callback in self.step.callbacks):
                highest = progress.highest_score
                progress.highest_score = score if highest is None else max(highest, score)
                progress.best_score, progress.best_epoch = score, epoch
                self._keep()
                if self.file is not None:
                    writes = self.step.world.writer
                    checkpoint.save(self.file, self.step.module, progress=progress, writes=writes)
        return score

    def _bar(self, progress: Progress, chance: float) -> float:
        """The score above which an epoch is kept, where one was kept before and `chance` alone gives so much gain."""
        assert progress.best_score is not None
        if self.evaluate is not None or not self.scored or progress.start_score is None:
            return progress.best_score
        highest = progress.best_score if progress.highest_score is None else progress.highest_score
        # One standard error: with 6 samples and 3 steps two take the gains too, and none lets through what is worse.
        return max((progress.start_score + highest) / 2, progress.start_score + chance)

    def _score(self, progress: Progress, epoch: int) -> tuple[float, float, bool]:
        """Score the module; what of its gain over the start may be chance; if its outputs have become constants."""
        module = self.step.module
        module.eval()
        found = None
        with torch.no_grad():
            if self.evaluate is not None:
                score = float(self.evaluate(module))
            else:
                found = self.step.mean_loss(self.scored)
                score = -found.loss
        module.train()
        score = self.step.world.agreed(-math.inf if math.isnan(score) else score)  # no score is worse than NaN
        if found is None:
            return score, 0.0, False
        if epoch == 0:
            progress.start_losses, progress.start_variation = found.losses, found.outputs
            return score, 0.0, False
        before = [one for one in (progress.start_variation, found.teacher) if one]
        is_constant = bool(self.step.world.agreed(float(bool(collapsed(found.outputs, before)))))
        progress.collapses += is_constant
        return score, self.step.world.agreed(standard_error(progress.start_losses, found.losses)), is_constant

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
