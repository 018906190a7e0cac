"""com.microsoft operators that onnxruntime's optimizers put in the place of several: activations, norms, products."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.bridge.lowering.activation import (
    elu_of,
    leaky_relu_of,
    linear_clamp,
    scaled_elu,
    scaled_swish,
    thresholded_relu_of,
)
from onnxqat.bridge.lowering.convolution import conv
from onnxqat.bridge.lowering.linear import gemm
from onnxqat.bridge.lowering.microsoft_quantized import to_values
from onnxqat.bridge.lowering.normalization import normalize_rms


def com_microsoft_fast_gelu(n: NodeView) -> Lowered:
    """FastGelu 1: of the sum with the bias, by tanh."""
    x = n.call(operator.add, n.tensor(0), n.tensor(1)) if n.has(1) else n.tensor(0)
    return n.call(functional.gelu, x, approximate="tanh")


def com_microsoft_quick_gelu(n: NodeView) -> Lowered:
    """QuickGelu 1."""
    return n.call(scaled_swish, n.tensor(0), n.attr("alpha", 1.702))


def com_microsoft_bias_gelu(n: NodeView) -> Lowered:
    """BiasGelu 1, exact."""
    return n.call(functional.gelu, n.call(operator.add, n.tensor(0), n.tensor(1)))


def split_gelu(x: torch.Tensor) -> torch.Tensor:
    """The left half times the Gelu of the right half."""
    left, right = x.chunk(2, -1)
    return left * functional.gelu(right)


def com_microsoft_bias_split_gelu(n: NodeView) -> Lowered:
    """BiasSplitGelu 1."""
    return n.call(split_gelu, n.call(operator.add, n.tensor(0), n.tensor(1)))


def com_microsoft_bias_add(n: NodeView) -> Lowered:
    """BiasAdd 1."""
    return n.call(operator.add, n.call(operator.add, n.tensor(0), n.tensor(1)), n.tensor(2))


def biased_softmax(x: torch.Tensor, bias: torch.Tensor, axis: int, inner: bool) -> torch.Tensor:
    """Softmax over all axes from `axis` on, of the sum with a bias that lacks or repeats axes in front of them.

    Args:
        x: the scores.
        bias: fewer elements than `x`; its last axes are those of the softmax.
        axis: the first one.
        inner: whether the bias repeats over the axes next to `axis`, otherwise over the first axes.
    """
    width = x.shape[axis:].numel()
    rows = bias.numel() // width
    if inner:
        summed = x.reshape(rows, -1, width) + bias.reshape(rows, 1, width)
    else:
        summed = x.reshape(-1, rows, width) + bias.reshape(1, rows, width)
    return torch.softmax(summed, -1).reshape(x.shape)


def com_microsoft_bias_softmax(n: NodeView) -> Lowered:
    """BiasSoftmax 1."""
    return n.call(biased_softmax, n.tensor(0), n.tensor(1), int(n.attr("axis", 1)), bool(n.attr("is_inner_broadcast")))


def normalize_features(x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, epsilon: float) -> torch.Tensor:
    """LayerNormalization over the last axis."""
    return functional.layer_norm(x, x.shape[-1:], scale, bias, epsilon)


def _residual(n: NodeView, bias: int) -> fx.Node:
    total = n.call(operator.add, n.tensor(0), n.tensor(1))
    return n.call(operator.add, total, n.tensor(bias)) if n.has(bias) else total


def com_microsoft_skip_layer_normalization(n: NodeView) -> Lowered:
    """SkipLayerNormalization 1, with the sum as an output; saved statistics are refused."""
    if n.wants(1) or n.wants(2):
        raise n.refuse("saved statistics")
    total = _residual(n, 4)
    y = n.call(normalize_features, total, n.tensor(2), n.optional(3), n.attr("epsilon", 1e-12))
    return y, None, None, total


def com_microsoft_skip_simplified_layer_normalization(n: NodeView) -> Lowered:
    """SkipSimplifiedLayerNormalization 1, with the sum as an output; saved statistics are refused."""
    if n.wants(1) or n.wants(2):
        raise n.refuse("saved statistics")
    total = _residual(n, 3)
    y = n.call(normalize_rms, total, n.tensor(2), -1, n.attr("epsilon", 1e-12), torch.float32)
    return y, None, None, total


def embed(
    ids: torch.Tensor,
    segments: torch.Tensor | None,
    words: torch.Tensor,
    places: torch.Tensor,
    segment_table: torch.Tensor | None,
    positions: torch.Tensor | None,
) -> torch.Tensor:
    """Sum of the embeddings of words, positions and segments: (B, S, D) for `ids` (B, S)."""
    total = functional.embedding(ids, words)
    total = total + (places[: ids.shape[1]] if positions is None else functional.embedding(positions, places))
    if segments is not None and segment_table is not None:
        total = total + functional.embedding(segments, segment_table)
    return total


def count_ones(mask: torch.Tensor | None, ids: torch.Tensor) -> torch.Tensor:
    """int32 (B,): how many values of each row of the mask are 1; 0 without a mask."""
    if mask is None:
        return torch.zeros(ids.shape[0], dtype=torch.int32, device=ids.device)
    return (mask == 1).sum(1, dtype=torch.int32)


def com_microsoft_embed_layer_normalization(n: NodeView) -> Lowered:
    """EmbedLayerNormalization 1."""
    ids = n.tensor(0)
    total = n.call(embed, ids, n.optional(1), n.tensor(2), n.tensor(3), n.optional(4), n.optional(8))
    y = n.call(normalize_features, total, n.tensor(5), n.tensor(6), n.attr("epsilon", 1e-12))
    return y, n.call(count_ones, n.optional(7), ids) if n.wants(1) else None, total


def embed_codes(ids: torch.Tensor, table: list[torch.Tensor]) -> torch.Tensor:
    """Rows of a table of codes, as floats; `table` is the codes, the scale and the zero point."""
    codes, scale, zero_point = table
    return to_values(codes[ids], scale, zero_point)


def com_microsoft_q_embed_layer_normalization(n: NodeView) -> Lowered:
    """QEmbedLayerNormalization 1: EmbedLayerNormalization on tables of codes."""
    ids = n.tensor(0)
    words, places, segments, gamma, beta = (
        [n.tensor(2 + i), n.buffer(8 + i), n.tensor(13 + i)] if n.has(2 + i) else None for i in range(5)
    )
    total = n.call(embed_codes, ids, words)
    total = n.call(operator.add, total, n.call(embed_codes, n.call(positions_of, ids), places))
    if segments is not None and n.has(1):
        total = n.call(operator.add, total, n.call(embed_codes, n.tensor(1), segments))
    scale, bias = (n.call(to_values, *parameter) for parameter in (gamma, beta) if parameter is not None)
    y = n.call(normalize_features, total, scale, bias, n.attr("epsilon", 1e-12))
    return y, n.call(count_ones, n.optional(7), ids) if n.wants(1) else None


def positions_of(ids: torch.Tensor) -> torch.Tensor:
    """0 to S - 1 for `ids` (B, S)."""
    return torch.arange(ids.shape[1], device=ids.device)


def normalize_channel_groups(
    x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, groups: int, epsilon: float, last: bool, silu: bool
) -> torch.Tensor:
    """GroupNormalization in float32, with the channels last or second, and SiLU behind it where asked for."""
    wide = x.movedim(-1, 1).to(torch.float32) if last else x.to(torch.float32)
    y = functional.group_norm(wide, groups, scale.to(torch.float32), bias.to(torch.float32), epsilon)
    y = functional.silu(y) if silu else y
    return (y.movedim(1, -1) if last else y).to(x.dtype)


def _group_norm(n: NodeView, x: fx.Node) -> fx.Node:
    last, silu = bool(n.attr("channels_last", 1)), int(n.attr("activation", 0)) == 1
    groups, epsilon = int(n.attr("groups")), n.attr("epsilon", 1e-5)
    return n.call(normalize_channel_groups, x, n.tensor(1), n.tensor(2), groups, epsilon, last, silu)


def com_microsoft_group_norm(n: NodeView) -> Lowered:
    """GroupNorm 1."""
    return _group_norm(n, n.tensor(0))


def add_skip(x: torch.Tensor, skip: torch.Tensor, bias: torch.Tensor | None, last: bool) -> torch.Tensor:
    """`x` plus a tensor of its shape or with one value per channel and sample, plus a bias per channel."""
    spatial = [1] * (x.dim() - 2)
    if skip.dim() == 2:
        skip = skip.reshape([skip.shape[0], *spatial, -1] if last else [*skip.shape, *spatial])
    if bias is not None:
        bias = bias if last else bias.reshape([-1, *spatial])
    return x + skip if bias is None else x + skip + bias


def com_microsoft_skip_group_norm(n: NodeView) -> Lowered:
    """SkipGroupNorm 1, with the sum as an output."""
    last = bool(n.attr("channels_last", 1))
    total = n.call(add_skip, n.tensor(0), n.tensor(3), n.optional(4), last)
    return _group_norm(n, total), total


def turned_matrix(x: torch.Tensor) -> torch.Tensor:
    """The matrices in the last two axes transposed; a vector as it is."""
    return x.transpose(-2, -1) if x.dim() > 1 else x


def _side(n: NodeView, index: int, letter: str) -> fx.Node:
    x = n.tensor(index)
    if n.attr(f"transBatch{letter}", 0):
        x = n.call(torch.movedim, x, 0, -2)
    if n.attr(f"trans{letter}", 0) and n.rank(index) != 1:
        x = n.call(turned_matrix, x)
    return x


def com_microsoft_fused_mat_mul(n: NodeView) -> Lowered:
    """FusedMatMul 1."""
    product = n.call(torch.matmul, _side(n, 0, "A"), _side(n, 1, "B"))
    alpha = n.attr("alpha", 1.0)
    return product if alpha == 1.0 else n.call(operator.mul, product, alpha)


def com_microsoft_transpose_mat_mul(n: NodeView) -> Lowered:
    """TransposeMatMul 1, the older name of FusedMatMul."""
    return com_microsoft_fused_mat_mul(n)


def _activated(n: NodeView, y: Any, name: str, parameters: Sequence[float | None]) -> Lowered:
    """`y` behind the activation that a fused operator names."""
    a, b = (*parameters, None, None)[:2]
    plain = {"": None, "Relu": torch.relu, "Sigmoid": torch.sigmoid, "Tanh": torch.tanh}
    plain |= {"Softplus": functional.softplus, "Softsign": functional.softsign, "HardSwish": functional.hardswish}
    if name in plain:
        function = plain[name]
        return y if function is None else n.call(function, y)
    if name == "LeakyRelu":
        return n.call(leaky_relu_of, y, 0.01 if a is None else a)
    if name == "Elu":
        return n.call(elu_of, y, 1.0 if a is None else a)
    if name == "HardSigmoid":
        return n.call(linear_clamp, y, 0.2 if a is None else a, 0.5 if b is None else b)
    if name == "Clip":
        return n.call(torch.clamp, y, a, b)
    if name == "ThresholdedRelu":
        return n.call(thresholded_relu_of, y, 1.0 if a is None else a)
    if name == "Selu":
        return n.call(scaled_elu, y, 1.6732632 if a is None else a, 1.0507010 if b is None else b)
    raise n.refuse(f"activation {name}")


def com_microsoft_fused_gemm(n: NodeView) -> Lowered:
    """FusedGemm 1."""
    parameters = [n.attr(f"activation_{name}") for name in ("alpha", "beta")]
    if n.attr("activation", "") == "Selu":
        parameters[1] = n.attr("activation_gamma")
    return _activated(n, gemm(n), n.attr("activation", ""), parameters)


def com_microsoft_fused_conv(n: NodeView) -> Lowered:
    """FusedConv 1: the sum with Z comes before the activation."""
    y: Any = conv(n)
    if n.has(3):
        y = n.call(operator.add, y, n.tensor(3))
    return _activated(n, y, n.attr("activation", ""), n.attr("activation_params") or [])
