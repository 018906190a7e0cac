"""Normalizations, for which LiteRT has no operator: written out in float."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from onnxqat.deployment.litert.graph import RefusedError
from onnxqat.deployment.litert.model import NO_OPTIONS, Array, Options
from onnxqat.deployment.litert.site import Site
from onnxqat.deployment.litert.values import Value

_EPSILON = 1e-5
"""The default of all these operators (LayerNormalization 17, RMSNormalization 23, InstanceNormalization 6)."""


def over_last_axes(site: Site) -> None:
    """LayerNormalization and RMSNormalization."""
    if any(site.node.output[1:]):
        raise RefusedError("its mean or deviation is read")
    value = site.floats(0)
    rank = len(value.shape)
    axes = range(int(site.attribute("axis", -1)) % rank, rank)
    if site.node.op_type == "LayerNormalization":
        value = _less_its_mean(site, value, axes)
    value = _of_power_one(site, value, axes)
    for index, code in ((1, "MUL"), (2, "ADD")):
        if site.has(index):
            value = _with(site, code, value, site.constant(index).values)
    site.give(value)


def of_channels(site: Site) -> None:
    """InstanceNormalization: over the places of each channel."""
    value = site.floats(0)
    axes = range(2, len(value.shape))
    value = _of_power_one(site, _less_its_mean(site, value, axes), axes)
    for index, code in ((1, "MUL"), (2, "ADD")):
        value = _with(site, code, value, site.constant(index).values.reshape(-1, *[1] * len(axes)))
    site.give(value)


def _less_its_mean(site: Site, value: Value, axes: Collection[int]) -> Value:
    mean = _mean(site, value, axes)
    return _made(site, "SUB", value, mean.number, ("SubOptions", {}))


def _of_power_one(site: Site, value: Value, axes: Collection[int]) -> Value:
    """Return `value` over the root of its mean square along `axes`, to which the node adds its epsilon."""
    power = _mean(site, _made(site, "MUL", value, value.number, ("MulOptions", {})), axes)
    epsilon = np.array(site.attribute("epsilon", _EPSILON), np.float32)
    root = _made(site, "RSQRT", _with(site, "ADD", power, epsilon))
    return _made(site, "MUL", value, root.number, ("MulOptions", {}))


def _mean(site: Site, value: Value, axes: Collection[int]) -> Value:
    """Mean of `value` along `axes` of the ONNX tensor, which stay with size 1."""
    along = site.builder.integers(f"{site.name}/axes", sorted(value.place(axis) for axis in axes))
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(value.shape))
    options: Options = ("ReducerOptions", {"KeepDims": True})
    return site.builder.add("MEAN", [value.number, along], shape, value.layout, None, site.name, options)


def _with(site: Site, code: str, value: Value, numbers: Array) -> Value:
    """MUL or ADD of `value` and `numbers`, which broadcast as those of ONNX do."""
    laid = numbers.reshape([1] * (len(value.shape) - numbers.ndim) + list(numbers.shape)).transpose(value.layout)
    constant = site.builder.constant(f"{site.name}/{code}", np.ascontiguousarray(laid, np.float32))
    return _made(site, code, value, constant, (f"{code.capitalize()}Options", {}))


def _made(site: Site, code: str, value: Value, other: int | None = None, options: Options = NO_OPTIONS) -> Value:
    """The result of an operator on `value`, and on the tensor `other` that broadcasts to it."""
    inputs = [value.number] if other is None else [value.number, other]
    return site.builder.add(code, inputs, value.shape, value.layout, None, site.name, options)
