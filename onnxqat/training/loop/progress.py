"""Progress of a training run: its counters, losses and scores."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar


@dataclasses.dataclass
class Progress:
    """Progress of a run: its counters, losses and scores.

    Attributes:
        step: optimizer steps done.
        epoch: epochs done.
        step_in_epoch: steps of the epoch in progress that are done.
        loss_sum: sum of the losses of the epoch in progress.
        losses: mean loss of every epoch done.
        best_score: score of the best epoch, higher is better; None before the first score.
        best_epoch: number of the best epoch, counted from 1; 0 for the start.
        highest_score: the highest score of an epoch that was kept, where a later one may be kept in its place.
        start_score: score before the first step; None where it was not asked for.
        score: the latest score; None before the first.
        scored_step: steps that were done when it was given.
        start_losses: loss of each held-out sample at the start (:mod:`onnxqat.training.loop.sample_losses`).
        start_variation: variation of each output at the start (:mod:`onnxqat.training.loop.collapse`).
        collapses: number of scores that found outputs that had become constants.
        skipped: steps that were left out because their loss or gradients were not finite.
        skipped_in_epoch: skipped steps of the epoch in progress.
        limited_scales: number of times that a step would have more than doubled or less than halved a scale.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0
    loss_sum: float = 0.0
    losses: list[float] = dataclasses.field(default_factory=list)
    best_score: float | None = None
    best_epoch: int = 0
    highest_score: float | None = None
    start_score: float | None = None
    score: float | None = None
    scored_step: int = 0
    start_losses: list[float] = dataclasses.field(default_factory=list)
    start_variation: list[float | None] = dataclasses.field(default_factory=list)
    collapses: int = 0
    skipped: int = 0
    skipped_in_epoch: int = 0
    limited_scales: int = 0
