"""Convolutions and matrix products of integers: exact, without a gradient.

Sums are formed in floating point, which is exact while they stay below the mantissa: float32 where the number of
products guarantees that, else float64. Results outside int32 wrap around, as an int32 accumulator does.
Requantization is ``saturate(round_half_even(sum * scale) + zero_point)`` with one float32 scale, as in onnxruntime
and in ONNX's text; ONNX's reference evaluator rounds after the addition and differs at ties.
"""

from __future__ import annotations

import operator

import numpy as np
import onnx_ir as ir
import torch
from torch import fx
from torch.nn import functional

from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.bridge.lowering.convolution import CONVOLUTIONS, same_pads, torch_padding
from onnxqat.bridge.lowering.quantization import quantize_dynamically

EIGHT_BITS = (ir.DataType.INT8, ir.DataType.UINT8)
LARGEST_PRODUCT = 255 * 255
MANTISSA = 2**24


def centre(codes: torch.Tensor, zero_point: torch.Tensor | None, axis: int, dtype: torch.dtype) -> torch.Tensor:
    """``codes - zero_point`` in type `dtype`; a zero point with one axis lies along `axis`."""
    if zero_point is None:
        return codes.to(dtype)
    return codes.to(dtype) - along(zero_point.to(dtype), axis, codes.dim())


def along(parameter: torch.Tensor, axis: int, rank: int) -> torch.Tensor:
    """A parameter with one axis, shaped to lie along `axis` of a tensor with `rank` axes; others as they are.

    A vector has only one axis, whichever of a matrix is asked for.
    """
    if parameter.dim() != 1 or parameter.shape[0] == 1:
        return parameter.reshape(()) if parameter.numel() == 1 else parameter
    shape = [1] * rank
    shape[max(axis, -rank)] = -1
    return parameter.reshape(shape)


def accumulate(sums: torch.Tensor) -> torch.Tensor:
    """Sums held in floating point as int32, wrapped around."""
    return sums.to(torch.int64).to(torch.int32)


def convolve(
    x: torch.Tensor,
    weight: torch.Tensor,
    strides: list[int] | None,
    pads: list[int] | None,
    dilations: list[int] | None,
    groups: int,
) -> torch.Tensor:
    """int32 convolution of centred codes; `pads` in ONNX's order."""
    padded = x if pads is None else functional.pad(x, torch_padding(pads))
    convolution = CONVOLUTIONS[x.dim() - 2]
    return accumulate(convolution(padded, weight, None, strides or 1, 0, dilations or 1, groups))


def convolve_same(
    x: torch.Tensor,
    weight: torch.Tensor,
    strides: list[int] | None,
    dilations: list[int] | None,
    groups: int,
    lower: bool,
) -> torch.Tensor:
    """:func:`convolve` with SAME padding, which depends on the size of the input."""
    ones = [1] * (x.dim() - 2)
    strides, dilations = strides or ones, dilations or ones
    pads = same_pads(x.shape[2:], list(weight.shape[2:]), strides, dilations, lower)
    return convolve(x, weight, strides, pads, dilations, groups)


def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """int32 matrix product of centred codes."""
    return accumulate(torch.matmul(a, b))


def requantize(
    sums: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None, low: int, high: int, dtype: torch.dtype
) -> torch.Tensor:
    """``saturate(round_half_even(sums * scale) + zero_point)`` in float32."""
    codes = torch.round(sums.to(torch.float32) * scale.to(torch.float32))
    if zero_point is not None:
        codes = codes + zero_point.to(torch.float32)
    return codes.clamp(low, high).to(dtype)


def combined_scale(a: torch.Tensor, b: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``a * b / y`` in their type, from left to right."""
    return a * b / y


def along_channels(parameter: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A parameter of all channels or of each, shaped to lie along axis 1 of `like`."""
    return along(parameter, 1, like.dim())


def scale_of_product(
    left: torch.Tensor, right: torch.Tensor, a: torch.Tensor, b: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """:func:`combined_scale` of ``left @ right``: `a` for all or each of the rows of `left`, `b` of the columns of `right`.

    The axis that a product with a vector lacks is not in the result.
    """
    rank = max(left.dim(), right.dim(), 2)
    scale = combined_scale(along(a, -2, rank), along(b, -1, rank), y)
    if scale.dim() and right.dim() == 1:
        scale = scale.squeeze(-1)
    return scale.squeeze(-1 if right.dim() == 1 else -2) if scale.dim() > 1 and left.dim() == 1 else scale


def limits(n: NodeView, dtype: ir.DataType | None) -> tuple[int, int, torch.dtype]:
    """Smallest and largest code of an 8-bit type, and the torch type; others are refused."""
    if dtype not in EIGHT_BITS:
        raise n.refuse(f"codes of type {'unknown' if dtype is None else dtype.name}")
    info = np.iinfo(dtype.numpy())
    return int(info.min), int(info.max), n.torch_dtype(dtype)


def exact_type(products: int | None) -> torch.dtype:
    """A type in which the sum of so many products of centred 8-bit codes is exact."""
    return torch.float32 if products is not None and products * LARGEST_PRODUCT < MANTISSA else torch.float64


def _check_codes(n: NodeView, *indices: int) -> None:
    for index in indices:
        limits(n, n.dtype(index))


def _convolution(n: NodeView, x: fx.Node, weight_index: int, zeros: tuple[int, int]) -> fx.Node:
    """The int32 sums of a convolution, without a bias."""
    _check_codes(n, weight_index)
    dims = n.dims(weight_index)
    products = int(np.prod(dims[1:])) if dims is not None and None not in dims[1:] else None  # type: ignore[arg-type]
    dtype = exact_type(products)
    codes = n.call(centre, x, n.optional(zeros[0]), 1, dtype)
    weight = n.call(centre, n.tensor(weight_index), n.optional(zeros[1]), 0, dtype)
    strides, dilations = n.attr("strides"), n.attr("dilations")
    groups, auto_pad = n.attr("group", 1), n.attr("auto_pad", "NOTSET")
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        return n.call(convolve_same, codes, weight, strides, dilations, groups, auto_pad == "SAME_LOWER")
    pads = None if auto_pad == "VALID" else n.attr("pads")
    return n.call(convolve, codes, weight, strides, pads, dilations, groups)


def conv_integer(n: NodeView) -> Lowered:
    """ConvInteger 10."""
    _check_codes(n, 0)
    return _convolution(n, n.tensor(0), 1, (2, 3))


def q_linear_conv(n: NodeView) -> Lowered:
    """QLinearConv 10."""
    _check_codes(n, 0)
    return _requantized_convolution(n, n.tensor(0))


def com_microsoft_q_linear_conv(n: NodeView) -> Lowered:
    """com.microsoft QLinearConv 1: also with the channels last."""
    _check_codes(n, 0)
    if not n.attr("channels_last", 0):
        return _requantized_convolution(n, n.tensor(0))
    y = _requantized_convolution(n, n.call(torch.movedim, n.tensor(0), -1, 1))
    return n.call(torch.movedim, y, 1, -1)


def _requantized_convolution(n: NodeView, x: fx.Node) -> fx.Node:
    sums = _convolution(n, x, 3, (2, 5))
    if n.has(8):
        sums = n.call(operator.add, sums, n.call(along_channels, n.tensor(8), sums))
    scale = n.call(along_channels, n.call(combined_scale, n.buffer(1), n.buffer(4), n.buffer(6)), sums)
    return n.call(requantize, sums, scale, n.tensor(7), *limits(n, n.dtype(7)))


def _product(n: NodeView, zeros: tuple[int, int], a_index: int, b_index: int) -> fx.Node:
    """The int32 matrix product of two inputs; zero points with one axis are for the rows and the columns."""
    _check_codes(n, a_index, b_index)
    ends = [(n.dims(a_index) or (None,))[-1]]
    b_dims = n.dims(b_index)
    if b_dims is not None:
        ends.append(b_dims[-2] if len(b_dims) > 1 else b_dims[0])
    dtype = exact_type(next((e for e in ends if e is not None), None))
    a = n.call(centre, n.tensor(a_index), n.optional(zeros[0]), -2, dtype)
    b = n.call(centre, n.tensor(b_index), n.optional(zeros[1]), -1, dtype)
    return n.call(multiply, a, b)


def mat_mul_integer(n: NodeView) -> Lowered:
    """MatMulInteger 10."""
    return _product(n, (2, 3), 0, 1)


def q_linear_mat_mul(n: NodeView) -> Lowered:
    """QLinearMatMul 10 and 21, per tensor, per row of a and per column of b."""
    sums = _product(n, (2, 5), 0, 3)
    scale = n.call(scale_of_product, n.tensor(0), n.tensor(3), n.buffer(1), n.buffer(4), n.buffer(6))
    return n.call(requantize, sums, scale, n.tensor(7), *limits(n, n.dtype(7)))


def scale_sums(sums: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``sums * scale + bias`` in the type of the scale."""
    y = sums.to(scale.dtype) * scale
    return y if bias is None else y + bias


def com_microsoft_mat_mul_integer_to_float(n: NodeView) -> Lowered:
    """com.microsoft MatMulIntegerToFloat 1."""
    sums = _product(n, (4, 5), 0, 1)
    return n.call(scale_sums, sums, n.call(operator.mul, n.buffer(2), n.buffer(3)), n.optional(6))


def com_microsoft_dynamic_quantize_mat_mul(n: NodeView) -> Lowered:
    """com.microsoft DynamicQuantizeMatMul 1: the left side is quantized over its own range."""
    _check_codes(n, 1)
    three = n.call(quantize_dynamically, n.tensor(0))
    codes, scale, zero_point = (n.item(three, i) for i in range(3))
    dims = n.dims(1)
    dtype = exact_type(dims[-2] if dims is not None and len(dims) > 1 else None)
    a, b = n.call(centre, codes, zero_point, -1, dtype), n.call(centre, n.tensor(1), n.optional(3), -1, dtype)
    return n.call(scale_sums, n.call(multiply, a, b), n.call(operator.mul, scale, n.buffer(2)), n.optional(4))


def com_microsoft_q_gemm(n: NodeView) -> Lowered:
    """com.microsoft QGemm 1: with a scale of the result codes, without one floats."""
    _check_codes(n, 0, 3)
    b_rows = n.attr("transB", 0)
    dims = n.dims(3)
    dtype = exact_type(None if dims is None else dims[1 if b_rows else 0])
    a = n.call(centre, n.tensor(0), n.optional(2), 0, dtype)
    b = n.call(centre, n.tensor(3), n.optional(5), 0 if b_rows else 1, dtype)
    a = n.call(torch.t, a) if n.attr("transA", 0) else a
    sums = n.call(multiply, a, n.call(torch.t, b) if b_rows else b)
    if n.has(6):
        sums = n.call(operator.add, sums, n.tensor(6))
    scale = n.call(operator.mul, n.buffer(1), n.buffer(4))
    if n.attr("alpha", 1.0) != 1.0:
        scale = n.call(operator.mul, scale, n.attr("alpha", 1.0))
    if not n.has(7):
        return n.call(scale_sums, sums, scale, None)
    scale = n.call(operator.truediv, scale, n.buffer(7))
    return n.call(requantize, sums, scale, n.tensor(8), *limits(n, n.dtype(8)))
