"""Confidence of the float model that training lost, on mixtures of samples: a measure of harm that needs no labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]

SHARE = 0.7
"""Part that the first of two samples has in a mixture, near the data and still an input of its own."""

LEAST = 0.01
"""Confidence that is lost at least where it counts as lost: a point of accuracy."""

ERRORS = 1.0
"""Standard errors that come on top of what labels may explain, so that a few samples by chance are no reason."""

SUM_OF_PROBABILITIES = 1e-3
"""Distance of a sum of probabilities from 1; half precision has errors of that size."""


@dataclasses.dataclass(frozen=True)
class LostConfidence:
    """Probabilities that the float model gives to the classes found, mean over the inputs.

    Attributes:
        lost: what it gives to the class of the start, less what it gives to the class of the trained model.
        explained: what a model that knew the right classes would lose of it, were the float model's probabilities
            right.
        error: standard error of the difference of the two.
    """

    lost: float
    explained: float
    error: float

    @property
    def is_harm(self) -> bool:
        """Check whether more was lost than labels may explain."""
        return self.lost >= LEAST and self.lost > self.explained + ERRORS * self.error


def mixtures(batches: Sequence[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
    """Each sample mixed with another one; nothing where an input is no float or the samples differ in shape.

    Training makes a model right on its samples whatever it does to the rest, so samples that it has seen say little;
    what lies between two of them (mixup, Zhang et al. 2018) it has not seen.

    Args:
        batches: inputs in the order of the graph, samples along axis 0.

    Returns:
        As many batches of the same shapes.
    """
    columns = list(zip(*batches, strict=True))
    if any(len({x.shape[1:] for x in column}) > 1 for column in columns):
        return []
    if not all(x.is_floating_point() for column in columns for x in column):
        return []
    sizes = [len(batch[0]) for batch in batches]
    # Half the samples away: in a file sorted by class, a neighbour is of the same one.
    joined = [torch.cat(column) for column in columns]
    mixed = [(SHARE * x.float() + (1 - SHARE) * x.float().roll(len(x) // 2, 0)).to(x.dtype) for x in joined]
    return list(zip(*(torch.split(x, sizes) for x in mixed), strict=True))


def measure(wanted: Array, before: Array, after: Array) -> LostConfidence:
    """Compare the classes that a model finds before and after training by what the float model thinks of them.

    With the float model's probabilities p, the class c of the start and that of the trained model, t, p_c - p_t is
    lost. A model that learned the right classes from labels has t drawn from p and loses max(p) - sum(p^2) on average:
    much where the float model is in doubt, nothing where it is sure. What is lost beyond that was not learned.

    Args:
        wanted: outputs of the float model, float, samples x classes: logits or probabilities.
        before: of the start, the same shape.
        after: of the trained model, the same shape; what is not finite has a class without any confidence.
    """
    confidence = _probabilities(wanted.astype(np.float64))
    each = np.arange(len(confidence))
    of_start = confidence[each, before.argmax(1)]
    of_trained = np.where(np.isfinite(after).all(1), confidence[each, after.argmax(1)], 0.0)
    lost, explained = of_start - of_trained, confidence.max(1) - np.square(confidence).sum(1)
    error = float((lost - explained).std() / np.sqrt(len(confidence)))
    return LostConfidence(float(lost.mean()), float(explained.mean()), error)


def _probabilities(outputs: Array) -> Array:
    """Softmax of logits; probabilities as they are."""
    if (outputs >= 0).all() and (np.abs(outputs.sum(1) - 1) < SUM_OF_PROBABILITIES).all():
        return outputs
    powers = np.exp(outputs - outputs.max(1, keepdims=True))
    found: Array = powers / powers.sum(1, keepdims=True)
    return found
