"""A bound on what one optimizer step does to a scale.

Adam moves every parameter by about its learning rate, whatever the size of the gradient: at 1e-3, a scale of 1e-3 is
gone after one step, and the network with it. A loop that knows scales gives them a rate of their own
(:func:`onnxqat.training.optimizers.parameter_groups`); this bound holds in those that do not.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

LARGEST_CHANGE = 0.01
"""Fraction of itself that one step changes a scale by at most. LSQ keeps the relative update of a scale near that of
the weights, which is 1e-4 to 1e-2 in training that converges (Esser et al., ICLR 2020, figure 2)."""


class StepLimit:
    """Keeps a scale within :data:`LARGEST_CHANGE` of what it was before the last optimizer step.

    A step is recognised by the version of the parameter, which torch raises with every change in place: nothing waits
    for the device. A change between two steps that goes through the quantizer (``set_qparams``, ``load_state_dict``)
    is taken as it is.
    """

    def __init__(self) -> None:
        self._before: Tensor | None = None
        self._version = 0

    def forget(self) -> None:
        """Take the scale as it is at the next :meth:`apply`."""
        self._before = None

    @torch.no_grad()
    def _bound(self, scale: nn.Parameter) -> None:
        assert self._before is not None
        reach = self._before.abs() * LARGEST_CHANGE  # scales of blocks may be negative
        scale.copy_(torch.minimum(torch.maximum(scale, self._before - reach), self._before + reach))

    def apply(self, scale: nn.Parameter) -> None:
        """Bring `scale`, float32 of any shape, back into its bounds where it was changed since the last call.

        Nothing happens in graphs that are traced, since these are replayed without this check.
        """
        if not scale.requires_grad or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        before = self._before
        if before is None or before.shape != scale.shape or before.device != scale.device:
            self._before = scale.detach().clone()
        elif scale._version != self._version:  # noqa: SLF001 - the documented way to see a change in place
            self._bound(scale)
            before.copy_(scale.detach())
        self._version = scale._version  # noqa: SLF001
