"""com.microsoft operators on weights that are stored as integers with one scale per block.

The integers stay as they are in the file; scales, zero points that are floats, and data get gradients. The weight of a
MatMulNBits has become a quantizer's master by then, where it can: :mod:`onnxqat.bridge.export.packed_weights`.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch
from torch.nn import functional

from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.bridge.importing.values import CONTAINERS, FLOATS

BITS = (2, 4, 8)


def unpack(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes of `bits` bits from bytes, low bits first; the last axis becomes ``8 / bits`` times as long."""
    if bits == 8:
        return packed
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
    return torch.bitwise_and(packed.unsqueeze(-1) >> shifts, 2**bits - 1).flatten(-2)


def expand_blocks(
    packed: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    outputs: int,
    inputs: int,
    block: int,
    bits: int,
) -> torch.Tensor:
    """The float weight (N, K) of MatMulNBits.

    Args:
        packed: uint8 (N, blocks, block * bits / 8).
        scales: one for each block, N * blocks of them.
        zero_points: packed like the weight (uint8), or one float for each block; None for ``2 ** (bits - 1)``.
        outputs: N.
        inputs: K, which may end within a block.
        block: size of a block.
        bits: width of a code.
    """
    blocks = -(-inputs // block)
    steps = unpack(packed.reshape(outputs, blocks, -1), bits).to(scales.dtype)
    if zero_points is None:
        steps = steps - 2 ** (bits - 1)
    else:
        zeros = zero_points.reshape(outputs, -1)
        zeros = unpack(zeros, bits)[:, :blocks] if zeros.dtype is torch.uint8 else zeros
        steps = steps - zeros.to(scales.dtype).unsqueeze(-1)
    return (steps * scales.reshape(outputs, blocks, 1)).flatten(1)[:, :inputs]


def com_microsoft_mat_mul_n_bits(n: NodeView) -> Lowered:
    """MatMulNBits 1 with 2, 4 and 8 bits; `g_idx`, prepacked and omitted weights are refused.

    The product is that of the definition: `accuracy_level`, which lets onnxruntime quantize the data, does not count.
    """
    if not n.has(2):  # a master weight, see onnxqat.bridge.export.packed_weights
        return n.call(functional.linear, n.tensor(0), n.tensor(1), n.optional(5))
    bits = int(n.attr("bits", 4))
    if bits not in BITS or n.has(4) or n.attr("weight_prepacked", 0):
        raise n.refuse(f"{bits} bits, g_idx or a prepacked weight")
    if 0 in (n.dims(1) or ()):
        raise n.refuse("an omitted weight")
    sizes = [int(n.attr(name)) for name in ("N", "K", "block_size")]
    weight = n.call(expand_blocks, n.tensor(1), n.tensor(2), n.optional(3), *sizes, bits)
    return n.call(functional.linear, n.tensor(0), weight, n.optional(5))


def take(x: torch.Tensor, indices: torch.Tensor, axis: int) -> torch.Tensor:
    """Entries along an axis, in the shape of the indices; negative ones count from the end."""
    flat = indices.reshape(-1).to(torch.int64)
    flat = torch.where(flat < 0, flat + x.shape[axis], flat).clamp(0, x.shape[axis] - 1)
    picked = torch.index_select(x, axis, flat)
    return picked.reshape([*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]])


def gather_dequantized(
    codes: torch.Tensor,
    indices: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    zero: int,
    axes: tuple[int, int],
    block: int,
    bits: int,
) -> torch.Tensor:
    """Rows of a table with one scale per block; an index outside the table gives zeros.

    Args:
        codes: the table, several codes a byte along the last axis where `bits` is below 8.
        indices: what to take.
        scales: like the table, with one entry per block.
        zero_points: like the scales, packed like the table; None for `zero`.
        zero: zero point of all blocks.
        axes: along which to take, and along which the blocks lie.
        block: size of a block.
        bits: width of a packed code, 8 where nothing is packed.
    """
    gather, quantize = axes
    rows = codes.shape[gather]
    if gather == quantize:
        table = dequantize_blocks(codes, scales, zero_points, zero, quantize, block, bits)
        found = take(table, indices, gather)
    else:
        inner = quantize + indices.dim() - 1 if quantize > gather else quantize
        zeros = None if zero_points is None else take(zero_points, indices, gather)
        found = dequantize_blocks(
            take(codes, indices, gather), take(scales, indices, gather), zeros, zero, inner, block, bits
        )
    inside = (indices >= -rows) & (indices < rows)
    shape = [1] * gather + list(indices.shape) + [1] * (found.dim() - gather - indices.dim())
    return torch.where(inside.reshape(shape), found, torch.zeros_like(found))


def dequantize_blocks(
    codes: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    zero: int,
    axis: int,
    block: int,
    bits: int,
) -> torch.Tensor:
    """``(codes - zero_point) * scale`` with one scale for each `block` entries along `axis`."""
    steps = unpack(codes, bits).to(scales.dtype)
    spread = scales.repeat_interleave(block, axis).narrow(axis, 0, steps.shape[axis])
    if zero_points is None:
        return (steps - zero) * spread
    zeros = unpack(zero_points, bits).narrow(axis, 0, scales.shape[axis]).to(scales.dtype)
    return (steps - zeros.repeat_interleave(block, axis).narrow(axis, 0, steps.shape[axis])) * spread


def com_microsoft_gather_block_quantized(n: NodeView) -> Lowered:
    """GatherBlockQuantized 1 on 4-bit integers and on bytes with 2, 4 and 8 bits; float codes are refused."""
    kind, bits = n.dtype(0), int(n.attr("bits", 4))
    packed = kind is ir.DataType.UINT8
    if (not packed and kind not in CONTAINERS) or n.dtype(2) not in FLOATS or bits not in BITS:
        raise n.refuse("codes that are no integers of up to 8 bits")
    rank = n.need_rank(0)
    axes: Any = (int(n.attr("gather_axis", 0)) % rank, int(n.attr("quantize_axis", 1)) % rank)
    zero = 2 ** (bits - 1) if packed else 0
    inputs = [n.tensor(0), n.tensor(1), n.tensor(2), n.optional(3)]
    return n.call(gather_dequantized, *inputs, zero, axes, int(n.attr("block_size", 128)), bits if packed else 8)
