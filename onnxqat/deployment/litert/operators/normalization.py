"""Normalizations, for which LiteRT has no operator: written out in float."""

from __future__ import annotations

from collections.abc import Collection

from onnxqat.deployment.litert.graph import RefusedError
from onnxqat.deployment.litert.operators.float_steps import FloatSteps
from onnxqat.deployment.litert.site import Site
from onnxqat.deployment.litert.values import Value

_EPSILON = 1e-5
"""The default of all these operators (LayerNormalization 17, RMSNormalization 23, InstanceNormalization 6)."""


def over_last_axes(site: Site) -> None:
    """LayerNormalization and RMSNormalization."""
    if any(site.node.output[1:]):
        raise RefusedError("its mean or deviation is read")
    value, steps = site.floats(0), FloatSteps(site)
    rank = len(value.shape)
    axes = range(int(site.attribute("axis", -1)) % rank, rank)
    if site.node.op_type == "LayerNormalization":
        value = _centred(steps, value, axes)
    value = _of_power_one(steps, value, axes)
    for index, code in ((1, "MUL"), (2, "ADD")):
        if site.has(index):
            value = steps.with_numbers(code, value, site.constant(index).values)
    site.give(value)


def of_channels(site: Site) -> None:
    """InstanceNormalization: over the places of each channel."""
    value, steps = site.floats(0), FloatSteps(site)
    axes = range(2, len(value.shape))
    value = _of_power_one(steps, _centred(steps, value, axes), axes)
    for index, code in ((1, "MUL"), (2, "ADD")):
        value = steps.with_numbers(code, value, site.constant(index).values.reshape(-1, *[1] * len(axes)))
    site.give(value)


def _centred(steps: FloatSteps, value: Value, axes: Collection[int]) -> Value:
    return steps.made("SUB", value, steps.mean(value, axes))


def _of_power_one(steps: FloatSteps, value: Value, axes: Collection[int]) -> Value:
    """Return `value` over the root of its mean square along `axes`, to which the node adds its epsilon."""
    power = steps.mean(steps.made("MUL", value, value), axes)
    power = steps.with_numbers("ADD", power, float(steps.site.attribute("epsilon", _EPSILON)))
    return steps.made("MUL", value, steps.made("RSQRT", power))
