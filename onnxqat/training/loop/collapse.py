"""Collapse of a network: outputs that no longer depend on the input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from onnxqat.training.distributed.process_context import ProcessContext

COLLAPSED = 0.01
"""Part of the variation of the start, or of the teacher where that is less, below which an output is a constant.

A network that got better has about the teacher's variation; one of 20 dB less tells no two samples apart."""

_LARGEST = 2**22  # values of one sample of an output up to which sums of each are held


class Variation:
    """Variance of each output over samples, the mean over its elements; outputs without a fixed shape have none."""

    def __init__(self) -> None:
        self._count = 0
        self._sums: dict[int, Tensor | None] = {}

    def add(self, outputs: Sequence[Tensor], samples: int) -> None:
        """Take in the outputs of a batch of so many samples."""
        for index, output in enumerate(outputs):
            fits = output.is_floating_point() and output.ndim and output.shape[0] == samples
            if not fits or not 0 < output[0].numel() <= _LARGEST:
                self._sums[index] = None
                continue
            values = output.detach().double()
            added = torch.stack([values.sum(0), values.square().sum(0)])
            held = self._sums.get(index, added.new_zeros(added.shape))
            self._sums[index] = None if held is None or held.shape != added.shape else held + added
        self._count += samples

    def values(self, world: ProcessContext, device: torch.device) -> list[float | None]:
        """Variance of each output over the samples of all processes; None where it is not known."""
        count = float(world.total(torch.tensor(float(self._count), dtype=torch.float64, device=device)))
        found: list[float | None] = []
        for index in sorted(self._sums):
            sums = self._sums[index]
            lost = world.total(torch.tensor(float(sums is None), device=device))
            if sums is None or float(lost) or count < 2:
                found.append(None)
                continue
            first, second = world.total(sums) / count
            found.append(float((second - first.square()).mean()))
        return found


def collapsed(now: Sequence[float | None], before: Sequence[Sequence[float | None]]) -> list[int]:
    """Find outputs that have become constants.

    Args:
        now: variation of each output.
        before: the same of the start, and of the teacher where there is one.

    Returns:
        Their indices.
    """
    found = []
    for index, value in enumerate(now):
        known = [one[index] for one in before if index < len(one)]
        least = min((v for v in known if v is not None), default=0.0)
        if value is not None and least > 0 and not value >= COLLAPSED * least:  # also where it is NaN
            found.append(index)
    return found
