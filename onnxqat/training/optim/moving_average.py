"""Exponential moving average of what is trained."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


class MovingAverage:
    """Exponential moving average of the trainable parameters, scales included.

    Args:
        module: whose parameters are averaged.
        decay: share of the average that stays at each step; the first steps use ``(1 + step) / (10 + step)``, so that
            the start is forgotten.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.values = {k: p.detach().clone() for k, p in module.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def update(self, module: nn.Module, step: int) -> None:
        """Take in the parameters after step `step`, counted from 1."""
        weight = 1.0 - min(self.decay, (1 + step) / (10 + step))
        for key, parameter in module.named_parameters():
            if key in self.values:
                self.values[key].lerp_(parameter, weight)

    @torch.no_grad()
    def copy_to(self, module: nn.Module) -> None:
        """Put the averages into the parameters of `module`."""
        for key, parameter in module.named_parameters():
            if key in self.values:
                parameter.copy_(self.values[key])

    @contextlib.contextmanager
    def applied(self, module: nn.Module) -> Iterator[None]:
        """The averages in place of the parameters, for the length of a ``with`` block."""
        parameters = {k: p for k, p in module.named_parameters() if k in self.values}
        kept = {key: p.detach().clone() for key, p in parameters.items()}
        self.copy_to(module)
        try:
            yield
        finally:
            with torch.no_grad():
                for key, parameter in parameters.items():
                    parameter.copy_(kept[key])
