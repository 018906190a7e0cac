"""A bound on what one optimizer step does to a scale.

Adam moves every parameter by about its learning rate, whatever the size of the gradient: at 1e-3, a scale of 1e-3 is
gone after one step, and the network with it. A loop that knows scales gives them a rate of their own
(:func:`onnxqat.training.optim.optimizers.parameter_groups`); this bound holds in those that do not.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakTensorKeyDictionary

LARGEST_CHANGE = 0.01
"""Fraction of itself that one step changes a scale by at most. LSQ keeps the relative update of a scale near that of
the weights, which is 1e-4 to 1e-2 in training that converges (Esser et al., ICLR 2020, figure 2)."""


_LIMITED = WeakTensorKeyDictionary()
"""The limit of each scale that was used in training, for :func:`_after_step`."""


class StepLimit:
    """Keeps a scale within :data:`LARGEST_CHANGE` of what it was before the last optimizer step.

    An optimizer of torch is followed by a hook, so that the last step of a run is limited as well. The steps of others
    are recognised in the next forward pass by the version of the parameter, which torch raises with every change in
    place: nothing waits for the device. A change between two steps that goes through the quantizer (``set_qparams``,
    ``load_state_dict``) is taken as it is.
    """

    def __init__(self) -> None:
        self._before: Tensor | None = None
        self._version = 0
        self._largest: float | None = None

    def forget(self) -> None:
        """Take the scale as it is at the next :meth:`apply`."""
        self._before = None

    @torch.no_grad()
    def _bound(self, scale: Tensor, before: Tensor) -> None:
        reach = before.abs() * LARGEST_CHANGE  # scales of blocks may be negative
        bounded = torch.minimum(torch.maximum(scale, before - reach), before + reach)
        scale.copy_(bounded if self._largest is None else bounded.clamp_(max=self._largest))

    def apply(self, scale: nn.Parameter, largest: float | None = None, *, training: bool) -> None:
        """Bring `scale`, float32 of any shape, back into its bounds where it was changed since the last call.

        With `largest`, the scale does not learn to be larger than that.

        Nothing happens in graphs that are traced, since these are replayed without this check. Not in `training`, as in
        loops over a module that is in evaluation mode, nothing is changed here: the optimizer's hook does.
        """
        if not scale.requires_grad or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        self._largest = largest
        if not (self.after_step(scale) if training else self._has_previous(scale)):
            self._before, self._version = scale.detach().clone(), scale._version  # noqa: SLF001
        if scale not in _LIMITED or _LIMITED[scale] is not self:
            _LIMITED[scale] = self
            _follow_optimizers()

    def _has_previous(self, scale: Tensor) -> bool:
        before = self._before
        return before is not None and (before.shape, before.device) == (scale.shape, scale.device)

    def after_step(self, scale: Tensor) -> bool:
        """Bring `scale` back into its bounds; False where it is not known what it was before."""
        before = self._before
        if before is None or not self._has_previous(scale):
            return False
        if scale._version != self._version:  # noqa: SLF001 - the documented way to see a change in place
            self._bound(scale, before)
            before.copy_(scale.detach())
            self._version = scale._version  # noqa: SLF001
        return True


def _after_step(optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
    """Limit the scales among the parameters of `optimizer`."""
    if torch.compiler.is_compiling():
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter in _LIMITED:
                _LIMITED[parameter].after_step(parameter)


@functools.cache
def _follow_optimizers() -> None:
    """Have torch call :func:`_after_step` behind each step of every optimizer, from the first limited scale on."""
    register_optimizer_step_post_hook(_after_step)
