"""FULLY_CONNECTED and BATCH_MATMUL."""

from __future__ import annotations

import math

import numpy as np

from onnxqat.deployment.litert.graph import RefusedError
from onnxqat.deployment.litert.model import Array, Options
from onnxqat.deployment.litert.operators import convolution
from onnxqat.deployment.litert.site import ACTIVATIONS, Site
from onnxqat.deployment.litert.values import Constant, Reshaped, Value, plain, reshaped_layout


def gemm(site: Site) -> None:
    """Gemm with a constant second matrix."""
    if site.attribute("transA", 0):
        raise RefusedError("its first matrix is transposed; LiteRT has no such FULLY_CONNECTED")
    weight = site.constant(1)
    if not site.attribute("transB", 0):
        weight = _transposed(weight)
    alpha, beta = float(site.attribute("alpha", 1.0)), float(site.attribute("beta", 1.0))
    integer = site.integer(0) and _integer(site, weight)
    if integer and (alpha != 1.0 or beta != 1.0):
        raise RefusedError("alpha and beta of a Gemm on codes have to be 1")
    if not integer and alpha != 1.0:
        weight = Constant(weight.values * np.float32(alpha), None, weight.name)
    held = site.held(0)
    columns = None
    if isinstance(held, Reshaped):
        value, columns = _flattened(site, held)
    else:
        value = site.value(0)
    value = value if integer else site.builder.floats(value)
    if columns is not None:
        weight = Constant(weight.array[:, columns], weight.grid, weight.name)
    value = site.builder.laid(value, plain(2))
    outputs = weight.shape[0]
    bias = convolution.bias(site, weight, outputs, value.grid, lambda b: b * np.float32(beta))
    _write(site, weight, value, bias, keeps=False)


def matmul(site: Site) -> None:
    """MatMul: with a constant matrix FULLY_CONNECTED, else BATCH_MATMUL."""
    second = site.input(1)
    if isinstance(second, Constant) and len(second.shape) == 2 and len(site.graph.shape(site.node.input[0])) > 1:
        weight = _transposed(second)
        integer = site.integer(0) and _integer(site, weight)
        value = site.value(0) if integer else site.floats(0)
        rank = len(value.shape)
        if value.layout[-1] != rank - 1:  # the other axes may lie in any order
            value = site.builder.laid(value, plain(rank))
        bias = convolution.bias(site, weight, weight.shape[0], value.grid)
        _write(site, weight, value, bias, keeps=True)
        return
    integer = site.integer(0, 1)
    sides = [site.value(i) if integer else site.floats(i) for i in (0, 1)]
    if any(len(side.shape) < 2 for side in sides):
        raise RefusedError("LiteRT has no product of a vector")
    rows = [site.builder.laid(side, plain(len(side.shape))) for side in sides]
    options: Options = ("BatchMatMulOptions", {"AdjX": False, "AdjY": False})
    grid = site.target.grid if integer else None
    site.write("BATCH_MATMUL", [side.number for side in rows], plain(len(site.shape)), options, grid=grid)


def _integer(site: Site, weight: Constant) -> bool:
    if weight.grid is None or weight.array.dtype != np.int8:
        return False
    if weight.grid.axis not in (None, 0):
        raise RefusedError("its weight has one scale for each row; LiteRT has one for each output, or one")
    return not site.has(2) or site.constant(2).grid is not None


def _transposed(weight: Constant) -> Constant:
    grid = weight.grid if weight.grid is None or weight.grid.axis is None else weight.grid.moved(1 - weight.grid.axis)
    return Constant(weight.array.T, grid, weight.name)


def _flattened(site: Site, held: Reshaped) -> tuple[Value, Array | None]:
    """A map as rows in the order in which it lies, and which column of the weight each element needs.

    Transposing a constant weight costs nothing; transposing the map would be an operator.
    """
    source, shape = held.source, held.shape
    direct = reshaped_layout(source.shape, source.layout, shape) is not None
    if direct or len(shape) != 2 or source.shape[0] != shape[0] or source.layout[0] != 0:
        return site.builder.reshaped(source, shape, held.name), None
    inner = source.shape[1:]
    columns = np.arange(math.prod(inner)).reshape(inner).transpose([axis - 1 for axis in source.layout[1:]]).reshape(-1)
    as_stored = Value(source.number, source.stored, plain(len(source.shape)), source.grid, source.dtype)
    return site.builder.reshaped(as_stored, shape, held.name), columns


def _write(site: Site, weight: Constant, value: Value, bias: int, *, keeps: bool) -> None:
    """Write FULLY_CONNECTED over the last axis, with its activation fused where the result is quantized."""
    codes = value.grid is not None
    weights = site.builder.constant(
        weight.name, weight.array if codes else weight.values, weight.grid if codes else None
    )
    activation = site.fused() if codes else "NONE"
    fields: dict[str, int | float | bool] = {
        "FusedActivationFunction": ACTIVATIONS[activation],
        "WeightsFormat": 0,
        "KeepNumDims": keeps,
    }
    options: Options = ("FullyConnectedOptions", fields)
    shape = (*value.shape[:-1], weight.shape[0])
    grid = site.target.grid if codes else None
    site.write(
        "FULLY_CONNECTED",
        [value.number, weights, bias],
        value.layout,
        options,
        grid=grid,
        shape=shape,
        activation=activation,
    )
