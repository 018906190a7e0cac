"""Gradient clipping by value: each element of a gradient is brought into a range around 0."""

from __future__ import annotations

import torch

from onnxqat.errors import UsageError
from onnxqat.training.callbacks.callback import Callback, Run
from onnxqat.training.distributed.tensors import local


class ValueClipping(Callback):
    """Clips each element of a gradient to ``-limit .. limit`` after the norm of all of them was clipped.

    Args:
        limit: largest absolute value, > 0.

    Raises:
        UsageError: ``option-invalid``.
    """

    name = "value-clipping"

    def __init__(self, limit: float) -> None:
        if not limit > 0.0:
            raise UsageError("option-invalid", f"gradients cannot be clipped to values up to {limit}; it must be > 0")
        self.limit = limit

    def start(self, run: Run) -> None:
        """See the base class."""
        self._module = run.module

    def after_backward(self, step: int) -> None:
        """See the base class."""
        gradients = [local(p.grad) for p in self._module.parameters() if p.grad is not None]
        torch._foreach_clamp_min_(gradients, -self.limit)
        torch._foreach_clamp_max_(gradients, self.limit)
