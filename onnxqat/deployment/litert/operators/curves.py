"""Functions of one tensor for which LiteRT has no operator, or its reference kernels none: written out in float."""

from __future__ import annotations

from onnxqat.deployment.litert.operators.float_steps import FloatSteps
from onnxqat.deployment.litert.site import Site
from onnxqat.deployment.litert.values import Value

_SELU = {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}
"""Defaults of ONNX, Selu 6."""


def curve(site: Site) -> None:
    """Ceil, Celu, Elu, Mish, Reciprocal, Selu, Softplus, Softsign and Swish."""
    value, steps = site.floats(0), FloatSteps(site)
    site.give(_CURVES[site.node.op_type](steps, value))


def _elu(steps: FloatSteps, x: Value) -> Value:
    """``max(x, 0) + alpha * min(exp(x) - 1, 0)``; an exponential that overflows is cut to 0."""
    return _bent(steps, x, x, float(steps.site.attribute("alpha", 1.0)))


def _celu(steps: FloatSteps, x: Value) -> Value:
    alpha = float(steps.site.attribute("alpha", 1.0))
    return _bent(steps, x, steps.with_numbers("MUL", x, 1 / alpha), alpha)


def _selu(steps: FloatSteps, x: Value) -> Value:
    bent = _bent(steps, x, x, float(steps.site.attribute("alpha", _SELU["alpha"])))
    return steps.with_numbers("MUL", bent, float(steps.site.attribute("gamma", _SELU["gamma"])))


def _bent(steps: FloatSteps, x: Value, exponent: Value, alpha: float) -> Value:
    below = steps.with_numbers("MINIMUM", steps.with_numbers("SUB", steps.made("EXP", exponent), 1.0), 0.0)
    return steps.made("ADD", steps.made("RELU", x), steps.with_numbers("MUL", below, alpha))


def _softplus(steps: FloatSteps, x: Value) -> Value:
    """``max(x, 0) + log(1 + exp(-abs(x)))``, which no number overflows."""
    decay = steps.made("EXP", steps.made("NEG", steps.made("ABS", x)))
    return steps.made("ADD", steps.made("RELU", x), steps.made("LOG", steps.with_numbers("ADD", decay, 1.0)))


def _mish(steps: FloatSteps, x: Value) -> Value:
    return steps.made("MUL", x, steps.made("TANH", _softplus(steps, x)))


def _softsign(steps: FloatSteps, x: Value) -> Value:
    return steps.made("DIV", x, steps.with_numbers("ADD", steps.made("ABS", x), 1.0))


def _swish(steps: FloatSteps, x: Value) -> Value:
    inner = steps.with_numbers("MUL", x, float(steps.site.attribute("alpha", 1.0)))
    return steps.made("MUL", x, steps.made("LOGISTIC", inner))


def _ceil(steps: FloatSteps, x: Value) -> Value:
    return steps.made("NEG", steps.made("FLOOR", steps.made("NEG", x)))


def _reciprocal(steps: FloatSteps, x: Value) -> Value:
    return steps.over(1.0, x)


_CURVES = {
    "Ceil": _ceil,
    "Celu": _celu,
    "Elu": _elu,
    "Mish": _mish,
    "Reciprocal": _reciprocal,
    "Selu": _selu,
    "Softplus": _softplus,
    "Softsign": _softsign,
    "Swish": _swish,
}
OPERATORS = tuple(_CURVES)
