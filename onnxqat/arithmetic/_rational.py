"""Sigmoid and Tanh to the bit as onnxruntime computes them: quotients of two polynomials.

In float32 with fused multiply-adds (MLAS ``logistic.cpp`` and ``tanh.cpp``, after Eigen's): the same functions as those
of numpy and torch within 2e-7, other bits.
"""

from __future__ import annotations

import numpy as np

from onnxqat.arithmetic._arrays import Array, fused


def _single(*coefficients: float) -> tuple[float, ...]:
    """The float32 next to each."""
    return tuple(np.asarray(coefficients, np.float32).astype(np.float64).tolist())


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


def _polynomial(square: Array, coefficients: tuple[float, ...]) -> Array:
    """Horner's rule with fused multiply-adds."""
    value: Array = coefficients[0]
    for coefficient in coefficients[1:]:
        value = fused(value, square, coefficient)
    return value


def _quotient(x: Array, polynomials: tuple[tuple[float, ...], tuple[float, ...]]) -> Array:
    odd, even = polynomials
    square = x * x
    return _polynomial(square, odd) * x / _polynomial(square, even)


def sigmoid(x: Array) -> Array:
    """``1 / (1 + exp(-x))`` of float32."""
    return (_quotient(x.clip(-_SIGMOID_END, _SIGMOID_END), _SIGMOID) + 0.5).clip(0.0, 1.0)


def tanh(x: Array) -> Array:
    """``tanh(x)`` of float32."""
    return _quotient(x.clip(-_TANH_END, _TANH_END), _TANH)
