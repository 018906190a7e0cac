"""Functions of one tensor."""

from __future__ import annotations

import numpy as np

from onnxqat.deployment.litert.graph import RefusedError
from onnxqat.deployment.litert.model import Grid, Options, single_grid
from onnxqat.deployment.litert.site import Site
from onnxqat.deployment.litert.values import Value, channels_last

_FIXED = {
    "Sigmoid": ("LOGISTIC", single_grid(1 / 256, -128)),
    "Tanh": ("TANH", single_grid(1 / 128, 0)),
}
"""Grids that the kernels insist on (``quantization_spec.md``)."""
_ROWS = {
    "Softmax": ("SOFTMAX", single_grid(1 / 256, -128), ("SoftmaxOptions", {"Beta": 1.0})),
    "LogSoftmax": ("LOG_SOFTMAX", single_grid(16 / 256, 127), ("LogSoftmaxOptions", {})),
}
_LARGEST_SCALE = 16.0
"""Differences are shifted to the left until a step has 26 bits behind the point: by 31 from here on, where int32 ends
and the interpreter aborts. Such a row is all 0 and 1, and computed in float."""
_FREE: dict[str, tuple[str, Options]] = {
    "HardSwish": ("HARD_SWISH", ("HardSwishOptions", {})),
    "Exp": ("EXP", ("ExpOptions", {})),
    "Log": ("LOG", ("", {})),
    "Sqrt": ("SQRT", ("", {})),
    "Abs": ("ABS", ("AbsOptions", {})),
    "Neg": ("NEG", ("NegOptions", {})),
    "Sin": ("SIN", ("", {})),
    "Cos": ("COS", ("CosOptions", {})),
    "Floor": ("FLOOR", ("", {})),
}
_INTEGER = ("HardSwish",)
"""Those of the last table that are written for codes; the others are computed in float."""


def fixed(site: Site) -> None:
    """Sigmoid and Tanh; on codes they give the grid that the kernel insists on, and QUANTIZE follows for another one."""
    code, grid = _FIXED[site.node.op_type]
    integer = site.integer(0)
    value = site.value(0) if integer else site.floats(0)
    site.write(code, [value.number], value.layout, grid=grid if integer else None)


def row(site: Site) -> None:
    """Softmax and LogSoftmax along the axis that lies last; see :func:`fixed` for the grid."""
    code, grid, options = _ROWS[site.node.op_type]
    of_input = site.held(0).grid
    integer = of_input is not None and float(of_input.scale[0]) < _LARGEST_SCALE and site.integer(0)
    value = site.value(0) if integer else site.floats(0)
    axis = int(site.attribute("axis", -1)) % len(value.shape)
    if value.layout[-1] != axis:
        value = site.builder.laid(value, (*(a for a in value.layout if a != axis), axis))
    site.write(code, [value.number], value.layout, options, grid=grid if integer else None)


def free(site: Site) -> None:
    """Functions with a builtin operator of their own."""
    code, options = _FREE[site.node.op_type]
    integer = site.node.op_type in _INTEGER and site.integer(0)
    value = site.value(0) if integer else site.floats(0)
    site.write(code, [value.number], value.layout, options, grid=site.target.grid if integer else None)


def gelu(site: Site) -> None:
    """Gelu in float."""
    value = site.floats(0)
    options: Options = ("GeluOptions", {"Approximate": site.attribute("approximate", "none") == "tanh"})
    site.write("GELU", [value.number], value.layout, options)


def leaky_relu(site: Site) -> None:
    """LeakyRelu."""
    integer = site.integer(0)
    value = site.value(0) if integer else site.floats(0)
    options: Options = ("LeakyReluOptions", {"Alpha": float(site.attribute("alpha", 0.01))})
    site.write("LEAKY_RELU", [value.number], value.layout, options, grid=site.target.grid if integer else None)


def limits(site: Site) -> None:
    """Relu and Clip that no operator took over."""
    ends = site.graph.limits(site.node)
    if ends is None:
        raise RefusedError("its limits are computed")
    if site.has(1) and site.constant(1).array.dtype == np.int8:  # of codes, between their quantizers
        site.give(_within(site, site.value(0), (int(ends[0]), int(min(ends[1], 127)))))
        return
    integer = site.integer(0)
    value = site.value(0) if integer else site.floats(0)
    code = {(0.0, np.inf): "RELU", (0.0, 6.0): "RELU6"}.get(ends)
    if code is not None:
        site.write(code, [value.number], value.layout, grid=site.target.grid if integer else None)
        return
    if integer:
        site.finish(_between_codes(site, value, ends))
        return
    for operator, end in zip(("MAXIMUM", "MINIMUM"), ends, strict=True):
        if np.isfinite(end):
            number = site.builder.constant(f"{site.name}/limit", np.array([end], np.float32))
            options: Options = ("MaximumMinimumOptions", {})
            value = site.builder.add(
                operator, [value.number, number], value.shape, value.layout, None, site.name, options
            )
    site.give(value)


def _between_codes(site: Site, value: Value, ends: tuple[float, float]) -> Value:
    """`value` on the grid behind the node and between the codes of `ends` there."""
    grid = site.target.grid
    assert isinstance(grid, Grid)
    low, high = (int(np.clip(grid.code(end), -128, 127)) if np.isfinite(end) else None for end in ends)
    quantized = site.builder.quantized(value, grid, site.name)
    return _within(site, quantized, (-128 if low is None else low, 127 if high is None else high))


def _within(site: Site, value: Value, codes: tuple[int, int]) -> Value:
    """`value`, on a grid, between the smallest and the largest of `codes`."""
    options: Options = ("MaximumMinimumOptions", {})
    for operator, code, edge in zip(("MAXIMUM", "MINIMUM"), codes, (-128, 127), strict=True):
        if code != edge:
            number = site.builder.constant(f"{site.name}/limit", np.array([code], np.int8), value.grid)
            value = site.builder.add(
                operator, [value.number, number], value.shape, value.layout, value.grid, site.name, options
            )
    return value


def hard_sigmoid(site: Site) -> None:
    """HardSigmoid in float: MUL, ADD, MAXIMUM, MINIMUM."""
    value = site.floats(0)
    steps = (
        ("MUL", "MulOptions", float(site.attribute("alpha", 0.2))),
        ("ADD", "AddOptions", float(site.attribute("beta", 0.5))),
        ("MAXIMUM", "MaximumMinimumOptions", 0.0),
        ("MINIMUM", "MaximumMinimumOptions", 1.0),
    )
    for code, table, number in steps:
        constant = site.builder.constant(f"{site.name}/{code}", np.array([number], np.float32))
        value = site.builder.add(
            code, [value.number, constant], value.shape, value.layout, None, site.name, (table, {})
        )
    site.give(value)


def response_normalization(site: Site) -> None:
    """LRN in float, of an odd number of channels."""
    size = int(site.attributes["size"])
    if size % 2 == 0:
        raise RefusedError("LiteRT normalizes over an odd number of channels")
    value = site.floats(0)
    value = site.builder.laid(value, channels_last(len(value.shape)))
    fields: dict[str, int | float | bool] = {
        "Radius": size // 2,
        "Bias": float(site.attribute("bias", 1.0)),
        "Alpha": float(site.attribute("alpha", 1e-4)) / size,
        "Beta": float(site.attribute("beta", 0.75)),
    }
    site.write(
        "LOCAL_RESPONSE_NORMALIZATION", [value.number], value.layout, ("LocalResponseNormalizationOptions", fields)
    )


def batch_normalization(site: Site) -> None:
    """BatchNormalization that no layer took in, in float: MUL and ADD."""
    scale, shift, mean, variance = (site.constant(i).values.astype(np.float64) for i in range(1, 5))
    factor = scale / np.sqrt(variance + float(site.attribute("epsilon", 1e-5)))
    value = site.floats(0)
    along = [1] * len(value.shape)
    along[value.place(1)] = -1
    for code, table, numbers in (("MUL", "MulOptions", factor), ("ADD", "AddOptions", shift - mean * factor)):
        constant = site.builder.constant(f"{site.name}/{code}", numbers.astype(np.float32).reshape(along))
        value = site.builder.add(
            code, [value.number, constant], value.shape, value.layout, None, site.name, (table, {})
        )
    site.give(value)


def unit_length(site: Site) -> None:
    """LpNormalization with p = 2 along the last axis in memory, as L2_NORMALIZATION."""
    if int(site.attribute("p", 2)) != 2:
        raise RefusedError("LiteRT has L2_NORMALIZATION, no other norm")
    integer = site.integer(0)
    value = site.value(0) if integer else site.floats(0)
    axis = int(site.attribute("axis", -1)) % len(value.shape)
    if value.layout[-1] != axis:
        value = site.builder.laid(value, (*(a for a in value.layout if a != axis), axis))
    options: Options = ("L2NormOptions", {"FusedActivationFunction": 0})
    site.write("L2_NORMALIZATION", [value.number], value.layout, options, grid=_FIXED["Tanh"][1] if integer else None)
