"""Sigmoid and Tanh to the bit as onnxruntime computes them, where codes are chosen while a model runs.

DynamicQuantizeLinear takes its scale from the very values that it quantizes, so that the last bit of one value can move
every code behind it, and through the layers a whole result. onnxruntime's Sigmoid and Tanh (MLAS ``logistic.cpp`` and
``tanh.cpp``, after Eigen's) are quotients of two polynomials, in float32 with fused multiply-adds: the same function as
torch's within 2e-7, other bits. Elsewhere torch's own, faster functions serve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from onnxqat.bridge.lowering import microsoft_recurrent, quantization

if TYPE_CHECKING:
    from onnxqat.bridge.builder import Builder


def _single(*coefficients: float) -> tuple[float, ...]:
    """The float32 next to each."""
    return tuple(torch.tensor(coefficients, dtype=torch.float32).tolist())


# Numerator and denominator, coefficients from the highest power down.
_SIGMOID = (
    _single(
        4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05, 8.51377133304701e-03, 2.48287947061529e-01
    ),
    _single(
        *(6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06),
        *(1.70198817374094e-03, 1.16817656904453e-01, 9.93151921023180e-01),
    ),
)
_TANH = (
    _single(
        *(-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08),
        *(1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03),
    ),
    _single(1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
)
_SIGMOID_END, _TANH_END = 18.0, 9.0  # beyond these the value is that at the end


def _polynomial(square: torch.Tensor, coefficients: tuple[float, ...]) -> torch.Tensor:
    """Horner's rule with fused multiply-adds.

    A product of two float32 is exact in float64, so that the sum rounded to float32 is what one instruction gives.
    """
    wide = square.double()
    value = torch.full_like(square, coefficients[0])
    for coefficient in coefficients[1:]:
        value = (value.double() * wide + coefficient).float()
    return value


def _quotient(x: torch.Tensor, polynomials: tuple[tuple[float, ...], tuple[float, ...]]) -> torch.Tensor:
    odd, even = polynomials
    square = x * x
    return _polynomial(square, odd) * x / _polynomial(square, even)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """``1 / (1 + exp(-x))`` with onnxruntime's bits for float32; torch's for other types."""
    if x.dtype is not torch.float32:
        return torch.sigmoid(x)
    value = _quotient(torch.clamp(x, -_SIGMOID_END, _SIGMOID_END), _SIGMOID) + 0.5
    return torch.clamp(value, 0.0, 1.0)


def tanh(x: torch.Tensor) -> torch.Tensor:
    """``tanh(x)`` with onnxruntime's bits for float32; torch's for other types."""
    if x.dtype is not torch.float32:
        return torch.tanh(x)
    return _quotient(torch.clamp(x, -_TANH_END, _TANH_END), _TANH)


_BITS = {torch.sigmoid: sigmoid, torch.tanh: tanh}


def follow_onnxruntime(builder: Builder) -> None:
    """Exchange the functions of this module for torch's in front of every dynamic quantizer of `builder`'s graph.

    Runs before fusion, which would join ``x * sigmoid(x)``.
    """
    dynamic = (quantization.quantize_dynamically, microsoft_recurrent.quantized_lstm)
    waiting = [node for node in builder.graph.nodes if node.target in dynamic]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if node.op == "call_function" and node.target in _BITS:
            node.target = _BITS[node.target]
        sources = [source for source in node.all_input_nodes if source not in seen]
        seen.update(sources)
        waiting += sources
