"""Quantized gradients: what flows back into a weighted layer is rounded to a few bits, at random and without bias.

Zhou et al., "DoReFa-Net", 2016 (arXiv 1606.06160), equation 12: with ``m`` the largest magnitude of the gradient of a
sample and ``N`` uniform noise of half a step on either side::

    f(g) = 2 m (quantize_k(g / (2 m) + 1/2 + N) - 1/2)

``quantize_k`` rounds to multiples of ``1 / (2**k - 1)``. Noise and rounding together round up with a probability that is
the distance from below, so that the mean is the gradient. Only training knows of it: the file does not change.
"""

from __future__ import annotations

import functools
from typing import Any, cast

import torch
from torch import Tensor

from onnxqat.bridge.folded_batchnorm import FoldedBatchNorm
from onnxqat.bridge.module import OnnxModule
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.errors import UsageError

SMALLEST = torch.finfo(torch.float32).tiny
BITS = range(2, 17)


def quantized(gradient: Tensor, bits: int) -> Tensor:
    """Equation 12 for each sample of `gradient`.

    Computed in float32 and returned in the type of `gradient`. A sample of zeros stays zeros; a sample with a value that
    is not finite stays as it is, so that whoever looks for such values finds them.

    Args:
        gradient: any floating type; axis 0 counts samples.
        bits: k, 2 or more.
    """
    values = gradient.to(torch.float32)
    others = list(range(1, values.ndim))
    largest = values.abs().amax(others, keepdim=True) if others else values.abs()
    levels = float(2**bits - 1)
    noise = torch.rand_like(values) - 0.5
    position = values / (2.0 * largest).clamp_min(SMALLEST) + 0.5
    # quantize_k is for numbers between 0 and 1: noise leads out of it by half a step at most.
    rounded = torch.round(position * levels + noise).clamp(0.0, levels) / levels
    found = 2.0 * largest * (rounded - 0.5)
    usable = torch.isfinite(largest) & (largest > 0)
    return torch.where(usable, found, values).to(gradient.dtype)


class _QuantizedGradient(torch.autograd.Function):
    """The identity, with :func:`quantized` in its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: int) -> Tensor:
        ctx.bits = bits
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return quantized(grads[0], ctx.bits), None


def passes(x: Tensor, bits: int) -> Tensor:
    """`x`; its gradient is :func:`quantized`, drawing from torch's generator of the device of `x`."""
    if not torch.is_grad_enabled() or not x.is_floating_point():
        return x
    return cast(Tensor, _QuantizedGradient.apply(x, bits))  # type: ignore[no-untyped-call]


def quantize(module: OnnxModule, bits: int) -> list[str]:
    """Quantize the gradients that flow into the layers with quantized weights, in place; the names of their outputs.

    Raises:
        UsageError: ``option-invalid``: a number of bits, or no such layer.
    """
    if bits not in BITS:
        raise UsageError("option-invalid", f"gradients of {bits} bits; {BITS[0]} to {BITS[-1]} are possible")
    names = weighted_tensors(module)
    if not names:
        raise UsageError("option-invalid", "no layer of the model has a quantized weight: no gradient to quantize")
    for name in names:
        module.register_tensor_hook(name, functools.partial(passes, bits=bits))
    return names


def weighted_tensors(module: OnnxModule) -> list[str]:
    """ONNX names of the outputs of layers whose weight is quantized, in graph order.

    Where the graph folds a BatchNormalization into a layer, that is what its correction to the batch's statistics gives.
    """
    named: dict[str, str] = {}
    for tensor, node in module.tensor_nodes.items():
        named.setdefault(node, tensor)
    children = dict(module.named_modules())
    carries = set()  # nodes that are a quantized weight, or one in another shape
    found = []
    for node in module.graph.nodes:
        quantizer = children.get(str(node.target)) if node.op == "call_module" else None
        if isinstance(quantizer, FakeQuantize) and quantizer.role == "weight":
            carries.add(node)
        elif any(n in carries for n in node.all_input_nodes):
            if all(n in carries for n in node.all_input_nodes):
                carries.add(node)
            elif node.name in named:
                found.append(named[node.name])
            else:
                found += [named[n.name] for n in node.users if isinstance(children.get(str(n.target)), FoldedBatchNorm)]
    return found
