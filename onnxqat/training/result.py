"""Result of :func:`onnxqat.finetune`."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Generic, TypeVar

from torch import nn

from onnxqat.displayed import Displayed
from onnxqat.training.loop.loop import Fitted, Loop
from onnxqat.types import Remark

MadeT = TypeVar("MadeT")


@dataclasses.dataclass
class FinetuneResult(Displayed, Generic[MadeT]):
    """Result of a run.

    Attributes:
        model: the tuned model, of the kind that was given; the output path when a path was given.
        module: the trained module, in eval mode, with the weights that were written.
        steps: optimizer steps, those before a resume included.
        losses: mean training loss of every epoch.
        best_epoch: epoch of the best score, counted from 1; 0 when that is the start, or no epoch was finished.
        best_score: its score, higher is better.
        start_score: the score of the model that was given; None where nothing could be scored.
        score: what the score is: ``"evaluate"``, a function of the caller, or ``"loss"``, minus the loss.
        scored_samples: samples that ``"loss"`` is the mean over; 0 with another score.
        held_out: whether training does not see these.
        arithmetic: arithmetic of the operators, in training and for the score.
        written: which weights were written: ``"best"``, ``"start"`` when no epoch scored higher, and where nothing
            could be scored ``"average"`` or ``"last"``.
        limited_scales: how often a step would have more than doubled or less than halved a scale; more than a few
            mean that the scales' learning rate is too high.
        skipped: steps that were left out because their loss or gradients were not finite.
        seconds: wall time of the training loop of this call.
        remarks: what is worth knowing about the options.
    """

    displayed_by: ClassVar[str] = "onnxqat.report.build:from_finetune"

    model: MadeT
    module: nn.Module
    steps: int
    losses: list[float]
    best_epoch: int
    best_score: float | None
    written: str
    limited_scales: int
    skipped: int
    seconds: float
    remarks: tuple[Remark, ...] = ()
    start_score: float | None = None
    score: str = "loss"
    scored_samples: int = 0
    held_out: bool = False
    arithmetic: str = "float"

    @property
    def helped(self) -> bool | None:
        """Check whether training raised the score; None where nothing could be scored."""
        return None if self.start_score is None else self.written == "best"


def choose(loop: Loop, fitted: Fitted) -> str:
    """Put the weights to write into the module: the best where they can be scored, the average, or the last."""
    if loop.has_score:
        loop.module.load_state_dict(fitted.best)
        return "best" if fitted.progress.best_epoch else "start"
    if loop.average is not None:
        loop.average.copy_to(loop.module)
        return "average"
    return "last"
