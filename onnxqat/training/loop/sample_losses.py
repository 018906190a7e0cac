"""Losses of single held-out samples: they tell how far a difference of two means over few of them can be trusted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from onnxqat.training.distributed.process_context import ProcessContext
from onnxqat.training.objective.features import FeatureLoss
from onnxqat.training.objective.losses import Loss, Objective
from onnxqat.training.objective.teachers import CouncilLoss


class SampleLosses:
    """The loss of each sample in turn; of each batch where its samples cannot be told apart."""

    def __init__(self) -> None:
        self._held: list[Tensor] = []

    def add(
        self,
        loss: Objective,
        outputs: Sequence[Tensor],
        labels: Tensor | None,
        target: Any,
        *,
        samples: int,
        whole: Tensor,
    ) -> None:
        """Take in a batch.

        Args:
            loss: of the run.
            outputs: of the batch.
            labels: of the batch, None without.
            target: the teacher's outputs, or those of several teachers; None without.
            samples: in the batch; 0 for one that does not count.
            whole: the loss of the batch, a scalar.
        """
        if not samples:
            return
        if not (_is_mean(loss) and _divides(outputs, samples) and (target is None or _divides(target, samples))):
            self._held.append(whole)
            return
        for index in range(samples):
            one = slice(index, index + 1)
            of_one = None if labels is None else labels[one]
            self._held.append(loss(_rows(outputs, one), of_one, None if target is None else _rows(target, one)))

    def values(self, world: ProcessContext, device: torch.device) -> list[float]:
        """The losses in all processes, in their order, the same list in each."""
        counts = torch.zeros(world.size, dtype=torch.float64, device=device)
        counts[world.rank] = len(self._held)
        each = [int(count) for count in world.total(counts).tolist()]
        values = torch.zeros(sum(each), dtype=torch.float64, device=device)
        if self._held:
            first = sum(each[: world.rank])
            values[first : first + len(self._held)] = torch.stack([value.double() for value in self._held])
        found: list[float] = world.total(values).tolist()
        return found


def standard_error(before: Sequence[float], after: Sequence[float]) -> float:
    """Standard error of the mean change of a loss over samples; 0 where fewer than two are known.

    Samples are compared in pairs: what makes one of them hard is in both of its losses and says nothing of the change.

    Args:
        before: loss of each sample.
        after: the same, later.
    """
    if len(before) != len(after) or len(before) < 2:
        return 0.0
    changes = [b - a for a, b in zip(before, after, strict=True)]
    return statistics.stdev(changes) / math.sqrt(len(changes)) if all(map(math.isfinite, changes)) else 0.0


def _is_mean(loss: Objective) -> bool:
    """Tell if `loss` is known to be a mean over samples; one of the user's may compare them with each other."""
    if isinstance(loss, CouncilLoss):
        return all(map(_is_mean, loss.losses))
    return _is_mean(loss.base) if isinstance(loss, FeatureLoss) else isinstance(loss, Loss)


def _divides(values: Any, samples: int) -> bool:
    """Tell if all tensors in `values` have their samples along axis 0."""
    if isinstance(values, Tensor):
        return values.ndim > 0 and values.shape[0] == samples
    return all(_divides(value, samples) for value in values)


def _rows(values: Any, rows: slice) -> Any:
    """These rows of the tensors in `values`, in lists that are nested alike."""
    return values[rows] if isinstance(values, Tensor) else [_rows(value, rows) for value in values]
