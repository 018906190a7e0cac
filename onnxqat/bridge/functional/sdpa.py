"""Scaled dot product attention with all that ONNX's and onnxruntime's operators add to it: what their lowerings call.

Layouts: queries (B, Hq, S, D), keys (B, Hk, T, D), values (B, Hk, T, Dv); a bias broadcasts to (B, Hq, S, T).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional


def split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(B, S, heads * D) as (B, heads, S, D)."""
    return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def merge_heads(x: torch.Tensor) -> torch.Tensor:
    """(B, heads, S, D) as (B, S, heads * D)."""
    return x.transpose(1, 2).flatten(2)


def softmax_in_steps(x: torch.Tensor, axis: int) -> torch.Tensor:
    """Softmax as ONNX defines it, each step rounded to the type of `x`; torch's own rounds half floats only once."""
    exponential = torch.exp(x - x.amax(axis, keepdim=True))
    return exponential / exponential.sum(axis, keepdim=True)


def log_softmax_in_steps(x: torch.Tensor, axis: int) -> torch.Tensor:
    """LogSoftmax as ONNX defines it, each step rounded to the type of `x`."""
    shifted = x - x.amax(axis, keepdim=True)
    return shifted - torch.exp(shifted).sum(axis, keepdim=True).log()


def softmax_with_blind_rows(x: torch.Tensor, axis: int) -> torch.Tensor:
    """Softmax whose gradient is 0, and not NaN, where all of `axis` is -inf; the result there is NaN as ever."""
    blind = torch.isneginf(x).all(axis, keepdim=True)
    return torch.softmax(x.masked_fill(blind, 0.0), axis).masked_fill(blind, torch.nan)


def softmax_over(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last axis, in steps where the type is a half float."""
    return softmax_in_steps(x, -1) if x.dtype in (torch.float16, torch.bfloat16) else torch.softmax(x, -1)


def cap_softly(scores: torch.Tensor, limit: float) -> torch.Tensor:
    """``limit * tanh(scores / limit)``."""
    return torch.tanh(scores / limit) * limit


def additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A boolean mask as a bias: 0 where True, -inf elsewhere."""
    zero = torch.zeros((), dtype=dtype, device=mask.device)
    return torch.where(mask, zero, torch.full_like(zero, -torch.inf))


def pad_mask(mask: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """A mask that is shorter than the keys, lengthened so that it forbids the rest."""
    missing = k.shape[-2] - mask.shape[-1]
    return functional.pad(mask, [0, missing], value=False if mask.dtype is torch.bool else -torch.inf)


def position_mask(q: torch.Tensor, k: torch.Tensor, offset: Any, causal: bool, left: int, right: int) -> torch.Tensor:
    """Return the mask of the keys that each query may see, by position.

    Args:
        q: queries.
        k: keys.
        offset: position of the first query: a number, or a tensor (B,).
        causal: whether a query sees no later key.
        left: number of earlier keys that it sees, -1 without a limit.
        right: number of later keys that it sees, -1 without a limit.

    Returns:
        bool (S, T), or (B, 1, S, T) where the offset is a tensor.
    """
    rows = torch.arange(q.shape[-2], device=q.device).unsqueeze(1)
    rows = rows + offset.reshape(-1, 1, 1, 1) if isinstance(offset, torch.Tensor) else rows + offset
    ahead = torch.arange(k.shape[-2], device=q.device) - rows
    allowed = ahead <= 0 if causal else torch.ones_like(ahead, dtype=torch.bool)
    if left >= 0:
        allowed = allowed & (ahead >= -left)
    return allowed & (ahead <= right) if right >= 0 else allowed


def length_mask(lengths: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Bool (B, 1, 1, T): the first ``lengths[b]`` keys of each sample."""
    return torch.arange(k.shape[-2], device=k.device) < lengths.reshape(-1, 1, 1, 1)


def repeat_heads(x: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Keys or values with one head for each of the queries', neighbours sharing."""
    groups = q.shape[1] // x.shape[1]
    return x if groups == 1 else x.repeat_interleave(groups, 1)


def masked_rows(bias: torch.Tensor) -> torch.Tensor:
    """Bool (..., S, 1): queries that may see no key."""
    return torch.isneginf(bias).all(-1, keepdim=True)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, scale: Any) -> torch.Tensor:
    """Attention in one fused call; a query that may see no key gives zeros, also in the gradient."""
    grouped = q.shape[1] != k.shape[1]
    if bias is None:
        return functional.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=grouped)
    blind = masked_rows(bias)
    safe = bias.masked_fill(blind, 0.0)
    found = functional.scaled_dot_product_attention(q, k, v, attn_mask=safe, scale=scale, enable_gqa=grouped)
    return found.masked_fill(blind, 0.0)


def attend_causally(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: Any) -> torch.Tensor:
    """Attention of each query to the keys up to its own position."""
    grouped = q.shape[1] != k.shape[1]
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)


def scores_of(q: torch.Tensor, k: torch.Tensor, scale: float | None) -> torch.Tensor:
    """``q @ k.T * scale``; as ONNX prescribes, both factors get the square root of the scale before the product."""
    root: Any = (q.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
    if q.dtype in (torch.float16, torch.bfloat16):
        root = torch.full((), root, dtype=q.dtype, device=q.device)  # rounded first, as in the definition
    return torch.matmul(q * root, (repeat_heads(k, q) * root).transpose(-1, -2))


def probabilities(scores: torch.Tensor, bias: torch.Tensor | None, precision: torch.dtype | None) -> torch.Tensor:
    """Softmax of the scores with the bias added, in type `precision`; rows without any key are zeros."""
    dtype = scores.dtype
    if bias is None:
        return softmax_over(scores.to(precision or dtype)).to(dtype)
    blind = masked_rows(bias)
    biased = (scores + bias).masked_fill(blind, 0.0).to(precision or dtype)
    return softmax_over(biased).masked_fill(blind, 0.0).to(dtype)


def weigh(weights: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Sum of the values with these weights."""
    return torch.matmul(weights, repeat_heads(v, weights))
