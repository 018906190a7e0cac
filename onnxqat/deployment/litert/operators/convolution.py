"""CONV_2D, DEPTHWISE_CONV_2D and TRANSPOSE_CONV."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnxqat.deployment.litert.graph import RefusedError
from onnxqat.deployment.litert.model import Array, Grid, Options
from onnxqat.deployment.litert.operators.windows import SAME, VALID, as_image, window, with_padding
from onnxqat.deployment.litert.site import ACTIVATIONS, Site
from onnxqat.deployment.litert.values import Constant, Value

IMAGE = (0, 2, 3, 1)


def convolution(site: Site) -> None:
    """Conv, of one or two spatial axes; as many groups as channels are a depthwise one."""
    weight = site.constant(1)
    image = as_image(site, _activation(site, weight))
    sizes, places = image.shape[2:], site.shape[2:]
    rank = len(weight.shape) - 2
    slid = window(site, weight.shape[2:], sizes[-rank:], places)
    kind = slid.kind(sizes)
    if kind is None:
        image, kind = with_padding(site.builder, image, slid), VALID
    kernel = _kernel(weight)
    groups = int(site.attribute("group", 1))
    activation = site.fused() if image.grid is not None else "NONE"
    fields: dict[str, int | float | bool] = {
        "Padding": kind,
        "StrideH": slid.strides[0],
        "StrideW": slid.strides[1],
        "DilationHFactor": slid.dilations[0],
        "DilationWFactor": slid.dilations[1],
        "FusedActivationFunction": ACTIVATIONS[activation],
    }
    if groups > 1 and kernel.shape[1] == 1:
        fields["DepthMultiplier"] = kernel.shape[0] // groups
        code, order, options = "DEPTHWISE_CONV_2D", (1, 2, 3, 0), ("DepthwiseConv2DOptions", fields)
    else:
        code, order, options = "CONV_2D", (0, 2, 3, 1), ("Conv2DOptions", fields)
    inputs = [image.number, _weights(site, kernel, order, image), _bias(site, weight, kernel.shape[0], image)]
    _write(site, code, inputs, image, options, activation)


def transposed_convolution(site: Site) -> None:
    """ConvTranspose of two spatial axes in one group; padding other than SAME is cut off behind it."""
    weight = site.constant(1)
    if len(weight.shape) != 4 or int(site.attribute("group", 1)) != 1:
        raise RefusedError("LiteRT has TRANSPOSE_CONV of two spatial axes and one group only")
    image = as_image(site, _activation(site, weight))
    if set(site.attribute("dilations", [1, 1])) != {1}:
        raise RefusedError("LiteRT has no TRANSPOSE_CONV with dilations")
    channels, size = weight.shape[1], (weight.shape[2], weight.shape[3])
    strides = tuple(site.attribute("strides", [1, 1]))
    before = _cut(site, strides, size, image.shape[2:])
    whole = [stride * (n - 1) + k for stride, n, k in zip(strides, image.shape[2:], size, strict=True)]
    kind = SAME if _is_same(site.shape[2:], image.shape[2:], strides, size, before) else VALID
    made = (
        site.shape[2:]
        if kind == SAME
        else tuple(map(max, whole, (b + n for b, n in zip(before, site.shape[2:], strict=True))))
    )
    if kind == VALID and list(made) != whole:
        raise RefusedError("its output padding reaches beyond what the kernel covers")
    target = site.builder.integers(f"{site.name}/shape", [image.shape[0], *made, channels])
    kernel = Constant(weight.array.swapaxes(0, 1), _on_axis(weight.grid, 0), weight.name)
    weights = _weights(site, kernel, IMAGE, image)
    inputs = [target, weights, image.number, _bias(site, weight, channels, image)]
    fields: dict[str, int | float | bool] = {"Padding": kind, "StrideH": strides[0], "StrideW": strides[1]}
    options: Options = ("TransposeConvOptions", fields)
    if kind == SAME or tuple(made) == tuple(site.shape[2:]):
        _write(site, "TRANSPOSE_CONV", inputs, image, options, "NONE")
        return
    grid = site.target.grid if image.grid is not None else None
    shape = (image.shape[0], channels, *made)
    full = site.builder.add("TRANSPOSE_CONV", inputs, shape, IMAGE, grid, f"{site.name}/whole", options)
    sides = [
        site.builder.integers(f"{site.name}/begin", [0, *before, 0]),
        site.builder.integers(f"{site.name}/size", [image.shape[0], *site.shape[2:], channels]),
    ]
    site.write("SLICE", [full.number, *sides], IMAGE, ("SliceOptions", {}), grid=grid)


def _cut(site: Site, strides: tuple[int, ...], size: tuple[int, int], sizes: tuple[int, ...]) -> list[int]:
    """Elements that the padding of a ConvTranspose takes away in front of each axis."""
    kind = site.attribute("auto_pad", "NOTSET")
    if kind == "NOTSET" and "output_shape" not in site.attributes:
        return list(site.attribute("pads", [0, 0, 0, 0]))[:2]
    if kind == "VALID":
        return [0, 0]
    totals = [s * (n - 1) + k - out for s, n, k, out in zip(strides, sizes, size, site.shape[2:], strict=True)]
    return [total // 2 if kind == "SAME_UPPER" else total - total // 2 for total in totals]


def _is_same(
    made: tuple[int, ...], sizes: tuple[int, ...], strides: tuple[int, ...], size: tuple[int, int], before: list[int]
) -> bool:
    for out, n, stride, k, cut in zip(made, sizes, strides, size, before, strict=True):
        total = max((n - 1) * stride + k - out, 0)
        if -(-out // stride) != n or cut != total // 2:
            return False
    return True


def _activation(site: Site, weight: Constant) -> Value:
    """The input: codes where the layer is one of integers, else floats."""
    if _integer(site, weight):
        return site.value(0)
    return site.floats(0)


def _integer(site: Site, weight: Constant) -> bool:
    if not site.integer(0) or weight.grid is None or weight.array.dtype != np.int8:
        return False
    if weight.grid.zero_point.any():
        raise RefusedError("its weight has zero points; LiteRT takes 0")
    return not site.has(2) or site.constant(2).grid is not None


def _kernel(weight: Constant) -> Constant:
    """`weight` with two spatial axes."""
    if len(weight.shape) == 4:
        return weight
    return Constant(weight.array[:, :, None, :], weight.grid, weight.name)


def _weights(site: Site, kernel: Constant, order: tuple[int, ...], image: Value) -> int:
    """Number of the weights in the order of LiteRT: (O, H, W, I), of a depthwise convolution (1, H, W, O)."""
    codes = image.grid is not None
    array = (kernel.array if codes else kernel.values).transpose(order)
    grid = kernel.grid if codes else None
    return site.builder.constant(kernel.name, array, None if grid is None else grid.moved(order.index(0)))


def _on_axis(grid: Grid | None, axis: int) -> Grid | None:
    return None if grid is None else grid.moved(axis)


def _bias(site: Site, weight: Constant, channels: int, image: Value) -> int:
    return bias(site, weight, channels, image.grid)


def bias(
    site: Site, weight: Constant, channels: int, grid: Grid | None, scaled: Callable[[Array], Array] = lambda b: b
) -> int:
    """Number of the bias: int32 on the grid of the sums, zeros where the node has none.

    Args:
        site: the node, whose third input it is.
        weight: of the layer.
        channels: number of outputs.
        grid: of the input; None: the layer is one of floats.
        scaled: what is done to the bias first.
    """
    given = site.constant(2) if site.has(2) else None
    name = given.name if given is not None else f"{site.name}/bias"
    if grid is None:
        values = np.zeros(channels, np.float32) if given is None else scaled(given.values.astype(np.float32))
        return site.builder.constant(name, np.broadcast_to(values.reshape(-1), (channels,)).copy())
    assert weight.grid is not None
    scale = (grid.scale[0] * weight.grid.scale).astype(np.float32)
    axis = None if weight.grid.axis is None else 0
    sums = Grid(scale, np.zeros(len(scale), np.int64), axis)
    if given is None:
        return site.builder.constant(name, np.zeros(channels, np.int32), sums)
    assert given.grid is not None
    if given.grid.zero_point.any() or not np.allclose(given.grid.scale, scale, rtol=1e-5, atol=0):
        raise RefusedError("its bias is not on the grid of the sums, scale of the input times scale of the weight")
    codes = np.broadcast_to(given.array.reshape(-1), (channels,)).astype(np.int32)
    return site.builder.constant(name, codes, sums)


def _write(site: Site, code: str, inputs: list[int], image: Value, options: Options, activation: str) -> None:
    grid = site.target.grid if image.grid is not None else None
    if len(site.shape) == 4:
        site.write(code, inputs, IMAGE, options, grid=grid, activation=activation)
        return
    batch, channels, length = site.shape
    shape = (batch, channels, 1, length)
    made = site.builder.add(code, inputs, shape, IMAGE, grid, site.name, options)
    back = site.builder.reshaped(made, site.shape, f"{site.name}/sequence")
    if grid is None:
        site.give(back)
    else:
        site.finish(back, limited=activation != "NONE")
