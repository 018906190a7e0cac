"""Relevance of places in a detector's output: where there is no object, its boxes are arbitrary.

Detectors put boxes and scores side by side at every place of a grid. In YOLOX-Nano 98 % of the squared error of boxes
and 93 % of that of classes lies where the objectness is below 0.01, so that a plain squared difference trains boxes
that nothing reads. The squared differences of boxes are weighted by the teacher's score at their place, and those of
classes by its objectness where there is one, as the score of a box is the product of the two.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

HIGH = 0.3
"""Score from which an object is taken to be there: default thresholds of detectors lie between 0.25 and 0.5."""

TOGETHER, FEWEST = 0.9, 32
"""An objectness is high where a class is, too, in this share of at least so many places; classes exclude each other."""

LEAST = 0.01
"""Weight of a place without any score, so that nothing drifts there."""

BOXES, SCORES, OBJECTNESS, CLASSES = range(4)
"""Kinds of channels: not a probability; a class that says for itself whether it is there; an objectness, classes beside it."""


@dataclasses.dataclass(frozen=True, eq=False)
class Relevance:
    """Weights of squared differences by place.

    Attributes:
        axis: of the channels, samples being axis 0.
        scores: which channels are probabilities, bool (C,).
        objectness: the channel that says whether there is an object; None: each class says so for itself.
    """

    axis: int
    scores: Tensor
    objectness: int | None

    def of(self, teacher: Tensor) -> Tensor:
        """Weights for what the `teacher` gave, float32 of its shape."""
        values = teacher.float().movedim(self.axis, -1)
        scores = self.scores.to(values.device)
        if self.objectness is None:
            classes = torch.ones_like(values[..., :1])
            boxes = _largest(values, scores)
        else:
            others = scores.clone()
            others[self.objectness] = False
            classes = values[..., self.objectness, None].clamp(LEAST, 1)
            boxes = classes * _largest(values, others)
        weights = torch.where(scores, classes, boxes.clamp(LEAST, 1))
        if self.objectness is not None:
            weights[..., self.objectness] = 1.0  # where there is no object, too, it has to say so
        return weights.movedim(-1, self.axis)

    def kinds(self) -> Tensor:
        """Number of the kind of each channel, int64 (C,)."""
        found = self.scores.long() * (SCORES if self.objectness is None else CLASSES)
        if self.objectness is not None:
            found[self.objectness] = OBJECTNESS
        return found


def find(teachers: Sequence[Tensor], axis: int, scores: Tensor, total: Callable[[Tensor], Tensor]) -> Relevance | None:
    """The relevance of places, where an output has boxes and scores, or an objectness and classes.

    Args:
        teachers: outputs of one shape but for the number of samples.
        axis: of the channels, samples being axis 0.
        scores: which channels are probabilities, bool (C,).
        total: the sum of a tensor over all processes.
    """
    if not bool(scores.any()):
        return None
    places = sum(
        (_high(teacher, axis, scores) for teacher in teachers), torch.zeros(2, len(scores), device=scores.device)
    )
    high, together = total(places.double())
    found = torch.nonzero((high >= FEWEST) & (together >= TOGETHER * high)).flatten().tolist()
    objectness = int(found[0]) if len(found) == 1 and int(scores.sum()) > 1 else None
    if objectness is None and bool(scores.all()):
        return None
    return Relevance(axis, scores, objectness)


def _high(teacher: Tensor, axis: int, scores: Tensor) -> Tensor:
    """Count, per channel, the places where it is a high score, and those where another one is high too: (2, C)."""
    high = (teacher.movedim(axis, -1) > HIGH) & scores
    several = high & (high.sum(-1, keepdim=True) > 1)
    return torch.stack([h.flatten(0, -2).sum(0) for h in (high, several)])


def _largest(values: Tensor, channels: Tensor) -> Tensor:
    """The largest of some channels, the last axis, at each place."""
    return values.masked_fill(~channels, 0.0).amax(-1, keepdim=True)


@dataclasses.dataclass(frozen=True, eq=False)
class DifferenceWeights:
    """Weights of the squared differences of an output.

    Attributes:
        by_channel: float32, broadcasts to (N, ...).
        relevance: None where all places count alike.
    """

    by_channel: Tensor
    relevance: Relevance | None = None

    def of(self, teacher: Tensor) -> Tensor:
        """Return the weights for the `teacher`'s output; they broadcast to its shape."""
        if teacher.ndim < self.by_channel.ndim:  # its first axis is not that of samples: all of it is one
            return self.of(teacher.unsqueeze(0)).squeeze(0)
        weights = self.by_channel.to(teacher.device)
        return weights if self.relevance is None else weights * self.relevance.of(teacher)

    def fields(self) -> dict[str, Any]:
        """As JSON values."""
        found = self.relevance
        where = None if found is None else (found.axis, found.scores.tolist(), found.objectness)
        return {"by_channel": self.by_channel.tolist(), "relevance": where}

    @staticmethod
    def made(fields: Mapping[str, Any]) -> DifferenceWeights:
        """From :meth:`fields`.

        Raises:
            TypeError, ValueError, KeyError: they are none.
        """
        relevance = None
        if fields["relevance"] is not None:
            axis, scores, objectness = fields["relevance"]
            relevance = Relevance(
                int(axis), torch.tensor(scores).bool(), None if objectness is None else int(objectness)
            )
        return DifferenceWeights(torch.tensor(fields["by_channel"]), relevance)
