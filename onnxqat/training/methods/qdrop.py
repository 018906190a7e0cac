"""QDrop: in training, every element of an activation stays float with probability one half.

Wei et al., "QDrop: Randomly Dropping Quantization for Extremely Low-bit Post-Training Quantization", ICLR 2022,
section 3.3. Made for tuning on a few hundred samples.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from onnxqat.bridge.speed import rematerialize
from onnxqat.training.methods import lsq

PROBABILITY = 0.5


class Method(lsq.Method):
    """LSQ; activations drop their quantization at random in train mode and never in eval mode."""

    def quantize(self, x: Tensor) -> Tensor:
        """See the base class; draws from torch's generator of the device of `x`."""
        result = super().quantize(x)
        if not self.training or self.role != "activation":
            return result
        return mixed(x, result, PROBABILITY)


def mixed(first: Tensor, second: Tensor, probability: float) -> Tensor:
    """Each element that of `first` with `probability`, else that of `second`; both finite, and of one shape and type.

    Products with 0 and 1 are exact and, on a CPU, take a third of the time of a choice and its gradient.
    """
    chosen = torch.empty_like(first).bernoulli_(probability)
    if not torch.is_grad_enabled():
        return _mixture(first, second, chosen)
    return cast(Tensor, _Mixed.apply(first, second, chosen))  # type: ignore[no-untyped-call]


def _mixture(first: Tensor, second: Tensor, chosen: Tensor) -> Tensor:
    chosen = chosen.to(first.dtype)
    return first * chosen + second * (1.0 - chosen)


class _Mixed(torch.autograd.Function):
    """:func:`_mixture` that saves a byte for each element, where torch's products save two factors."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor, chosen: Tensor) -> Tensor:
        """The mixture; `chosen` is 1.0 or 0.0."""
        result, mask = _mixture(first, second, chosen), chosen.to(torch.bool)
        ctx.save_for_backward(mask)
        if rematerialize.is_on() and any(ctx.needs_input_grad):
            rematerialize.note(result, _mixture, first, second, mask)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient where a tensor was chosen, else 0."""
        chosen, (of_first, of_second, _) = ctx.saved_tensors[0].to(grads[0].dtype), ctx.needs_input_grad
        return grads[0] * chosen if of_first else None, grads[0] * (1.0 - chosen) if of_second else None, None
