"""Losses and gradient norms on their way from the device, so that no step waits for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from onnxqat.training.callbacks.callback import StepRecord

CUDA_CHECK_INTERVAL = 8
"""Steps between two looks at the loss on a device that one has to wait for."""


@dataclasses.dataclass(frozen=True)
class Pending:
    """Results of a step, its numbers still on the device."""

    step: int
    epoch: int
    loss: Tensor
    norm: Tensor
    rates: Mapping[str, float]
    samples: int


class PendingSteps:
    """Steps whose numbers have not been looked at; :meth:`take` is the only place where the device is waited for.

    Args:
        device: where the module is; on a CPU each step is looked at.
    """

    def __init__(self, device: torch.device) -> None:
        self.interval = 1 if device.type == "cpu" else CUDA_CHECK_INTERVAL
        self._held: list[Pending] = []

    def add(self, pending: Pending) -> None:
        """Take in a step."""
        self._held.append(pending)

    @property
    def due(self) -> bool:
        """Check whether `interval` steps are held, so that it is time to :meth:`take` them."""
        return len(self._held) >= self.interval

    def take(self) -> list[StepRecord]:
        """The numbers of all steps held, in one transfer; none is held afterwards."""
        if not self._held:
            return []
        numbers = torch.stack([value.double() for p in self._held for value in (p.loss, p.norm)]).tolist()
        records = [
            StepRecord(p.step, p.epoch, numbers[2 * i], numbers[2 * i + 1], p.rates, p.samples)
            for i, p in enumerate(self._held)
        ]
        self._held.clear()
        return records
