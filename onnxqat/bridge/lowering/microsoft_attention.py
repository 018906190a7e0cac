"""com.microsoft's attention operators, in floating point.

A masked key gets `mask_filter_value` added to its score and is not excluded, so that a row without any key is an
average. Refused: quantized and windowed caches, buffers shared between past and present, outputs of the scores.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from onnxqat.bridge.functional import sdpa, shape_math
from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.bridge.lowering.attention import rotate, rotate_tokens, write_into_cache
from onnxqat.bridge.lowering.integer import centre, exact_type, limits, multiply, scale_sums


def filter_keys(mask: torch.Tensor, k: torch.Tensor, value: float) -> torch.Tensor:
    """The bias of a padding mask.

    Args:
        mask: 1 for keys that count, (B, T) or (B, S, T); or lengths (B,), or ends and starts (2 * B,).
        k: keys (B, H, T, D).
        value: what masked keys get.

    Returns:
        (B, 1, 1, T) or (B, 1, S, T).
    """
    if mask.dim() == 1:
        ends = mask.reshape(-1, k.shape[0], 1, 1, 1)
        places = torch.arange(k.shape[2], device=k.device)
        seen = places < ends[0]
        if ends.shape[0] > 1:
            seen = seen & (places >= ends[1])
    else:
        seen = (mask > 0).unsqueeze(1)
        seen = seen.unsqueeze(1) if mask.dim() == 2 else seen
    zero = torch.zeros((), dtype=k.dtype, device=k.device)
    return torch.where(seen, zero, torch.full_like(zero, value))


def hide_later_keys(bias: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """A bias that gives keys behind the query the smallest score; the last query is the last key."""
    allowed = sdpa.position_mask(q, k, k.shape[2] - q.shape[2], True, -1, -1)
    lowest = torch.finfo(q.dtype).min
    if bias is None:
        zero = torch.zeros((), dtype=q.dtype, device=q.device)
        return torch.where(allowed, zero, torch.full_like(zero, lowest))
    return torch.where(allowed, bias, torch.full_like(bias, lowest))


def _biases(n: NodeView, q: fx.Node, k: fx.Node, mask: int, added: int) -> fx.Node | None:
    """Padding mask, causality and attention bias of Attention and MultiHeadAttention as one."""
    bias = None
    if n.has(mask):
        rank = n.need_rank(mask)
        if rank > 3:
            raise n.refuse("a mask with four axes")
        bias = n.call(filter_keys, n.tensor(mask), k, n.attr("mask_filter_value", -10000.0))
    if n.attr("unidirectional", 0):
        bias = n.call(hide_later_keys, bias, q, k)
    if not n.has(added):
        return bias
    return n.tensor(added) if bias is None else n.call(operator.add, bias, n.tensor(added))


def split_projection(x: torch.Tensor, widths: list[int], heads: int) -> list[torch.Tensor]:
    """(B, S, sum of `widths`) as queries, keys and values with their heads."""
    return [sdpa.split_heads(part, heads) for part in torch.split(x, widths, -1)]


def join_past(past: torch.Tensor | None, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Keys and values behind those of the past, as one tensor (2, B, H, T, D)."""
    both = torch.stack([k, v])
    return both if past is None else torch.cat([past, both], 3)


def _attend_projected(n: NodeView, projected: fx.Node, widths: list[int], past: int, mask: int, added: int) -> Lowered:
    """Attention and QAttention behind their projection."""
    for name in ("do_rotary", "past_present_share_buffer"):
        if n.attr(name, 0):
            raise n.refuse(name)
    heads = int(n.attr("num_heads"))
    parts = n.call(split_projection, projected, widths, heads)
    q, k, v = (n.item(parts, i) for i in range(3))
    present = None
    if n.has(past) or n.wants(1):
        present = n.call(join_past, n.optional(past), k, v)
        k, v = n.item(present, 0), n.item(present, 1)
    y = n.call(sdpa.attend, q, k, v, _biases(n, q, k, mask, added), n.attr("scale"))
    return n.call(sdpa.merge_heads, y), present


def _widths(n: NodeView) -> list[int]:
    """Sizes of queries, keys and values in the projection."""
    stated = n.attr("qkv_hidden_sizes")
    if stated:
        return [int(s) for s in stated]
    dims = n.dims(1)
    if dims is None or dims[-1] is None:
        raise n.refuse("the weight's shape is unknown")
    return [dims[-1] // 3] * 3


def project(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``x @ weight + bias``."""
    y = torch.matmul(x, weight)
    return y if bias is None else y + bias


def com_microsoft_attention(n: NodeView) -> Lowered:
    """Attention 1: projection and attention in one."""
    projected = n.call(project, n.tensor(0), n.tensor(1), n.optional(2))
    return _attend_projected(n, projected, _widths(n), past=4, mask=3, added=5)


def com_microsoft_q_attention(n: NodeView) -> Lowered:
    """QAttention 1: the projection in integers, the rest in floats."""
    for index in (0, 1):
        limits(n, n.dtype(index))
    dims = n.dims(1)
    dtype = exact_type(None if dims is None else dims[0])
    x, weight = (n.call(centre, n.tensor(i), n.optional(6 + i), -1, dtype) for i in (0, 1))
    scale = n.call(operator.mul, n.buffer(3), n.buffer(4))
    projected = n.call(scale_sums, n.call(multiply, x, weight), scale, n.tensor(2))
    return _attend_projected(n, projected, _widths(n), past=8, mask=5, added=9)


def split_bias(bias: torch.Tensor, q: torch.Tensor) -> list[torch.Tensor]:
    """The bias of queries, keys and values, one behind the other, in three."""
    width = q.shape[-1]
    return list(torch.split(bias, [width, width, bias.shape[0] - 2 * width]))


def com_microsoft_multi_head_attention(n: NodeView) -> Lowered:
    """MultiHeadAttention 1: separate, packed in five axes, or with keys and values that have their heads already."""
    if n.has(8) or n.has(9) or n.wants(3):
        raise n.refuse("a shared buffer, beams or the scores as output")
    heads = int(n.attr("num_heads"))
    if n.need_rank(0) == 5:
        if n.has(3):
            raise n.refuse("a bias of packed inputs")
        packed = n.call(torch.Tensor.unbind, n.tensor(0), 3)
        q, k, v = (n.call(torch.transpose, n.item(packed, i), 1, 2) for i in range(3))
    else:
        q, k, v = _separate(n, heads)
    if n.has(6):
        k, v = n.call(torch.cat, [n.tensor(6), k], 2), n.call(torch.cat, [n.tensor(7), v], 2)
    y = n.call(sdpa.attend, q, k, v, _biases(n, q, k, mask=4, added=5), n.attr("scale"))
    return n.call(sdpa.merge_heads, y), k if n.wants(1) else None, v if n.wants(2) else None


def _separate(n: NodeView, heads: int) -> tuple[fx.Node, fx.Node, fx.Node]:
    """Queries, keys and values with their heads, the bias added."""
    if not n.has(1):
        raise n.refuse("keys are missing")
    q = n.tensor(0)
    biases = n.call(split_bias, n.tensor(3), q) if n.has(3) else None
    rank = n.need_rank(1)
    if rank == 5:
        if n.has(3):
            raise n.refuse("a bias of packed inputs")
        packed = n.call(torch.Tensor.unbind, n.tensor(1), 3)
        k, v = (n.call(torch.transpose, n.item(packed, i), 1, 2) for i in range(2))
    elif rank == 4:
        k, v = n.tensor(1), n.tensor(2)
    else:
        k, v = n.tensor(1), n.tensor(2)
        if biases is not None:
            k = n.call(operator.add, k, n.item(biases, 1))
            v = n.call(operator.add, v, n.item(biases, 2))
        k, v = n.call(sdpa.split_heads, k, heads), n.call(sdpa.split_heads, v, heads)
    if biases is not None:
        q = n.call(operator.add, q, n.item(biases, 0))
    return n.call(sdpa.split_heads, q, heads), k, v


def com_microsoft_rotary_embedding(n: NodeView) -> Lowered:
    """RotaryEmbedding 1; a `scale` and ragged batches are refused."""
    if n.attr("is_packed_batching", 0) or n.attr("scale", 1.0) != 1.0:
        raise n.refuse("scale or is_packed_batching")
    x, width, interleaved = n.tensor(0), int(n.attr("rotary_embedding_dim", 0)), bool(n.attr("interleaved", 0))
    positions = n.tensor(1)
    if n.need_rank(1) == 1:
        positions = n.call(positions_from, positions, x, 1 if n.need_rank(0) == 3 else 2)
    cosine, sine = (n.call(functional.embedding, positions, n.tensor(i)) for i in (2, 3))
    if n.need_rank(0) == 4:
        return n.call(rotate, x, cosine, sine, 1, width, interleaved)
    heads: Any = int(n.attr("num_heads", 0))
    if not heads:
        head_size = (n.dims(2) or (None, None))[1]
        hidden = (n.dims(0) or (None,))[-1]
        if head_size is None or hidden is None:
            raise n.refuse("the number of heads is unknown")
        heads = hidden // (2 * head_size)
    return n.call(rotate_tokens, x, cosine, sine, heads, width, interleaved)


def positions_from(start: torch.Tensor, x: torch.Tensor, axis: int) -> torch.Tensor:
    """Positions (1, S) that count up from `start` along an axis of `x`."""
    return torch.arange(x.shape[axis], device=x.device).unsqueeze(0) + start.reshape(-1, 1)


def stated_positions(ids: torch.Tensor, total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Positions (B, S): `ids`, but in a first prompt those that count up from its first element."""
    return torch.where(total.reshape(()) == x.shape[1], positions_from(ids.reshape(-1)[:1], x, 1), ids)


def cached_tokens(last: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """(B,): how many tokens were in the cache, from the index of the last token behind this step of `x` (B, S, ...)."""
    return (last.reshape(-1) + 1 - x.shape[1]).clamp(min=0).to(torch.int64)


def append_to_cache(past: torch.Tensor | None, new: torch.Tensor, start: torch.Tensor, length: int) -> torch.Tensor:
    """Keys or values of `length` places: those of the past, and the new ones from ``start[b]`` on."""
    if past is None:
        return functional.pad(new, [0, 0, 0, length - new.shape[2]])
    room = functional.pad(past, [0, 0, 0, length - past.shape[2]])
    return write_into_cache(room, new, start, 2, False)


def attend_in_group(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor,
    sink: torch.Tensor | None,
    scale: float | None,
    softcap: float,
) -> torch.Tensor:
    """Attention with capped scores, and with one more score a head that takes weight from the keys.

    Args:
        q: queries (B, Hq, S, D).
        k: keys (B, Hk, T, D).
        v: values like the keys.
        bias: added to the capped scores.
        sink: the additional score of each head, None for none.
        scale: factor of the scores, None for ``D ** -0.5``.
        softcap: limit of the scores, 0 for none.
    """
    scores = sdpa.scores_of(q, k, scale)
    if softcap:
        scores = sdpa.cap_softly(scores, softcap)
    scores = scores + bias
    if sink is None:
        return sdpa.weigh(torch.softmax(scores, -1), v)
    extra = sink.to(scores.dtype).reshape(1, -1, 1, 1).expand(scores.shape[0], scores.shape[1], scores.shape[2], 1)
    return sdpa.weigh(torch.softmax(torch.cat([scores, extra], -1), -1)[..., :-1], v)


def com_microsoft_group_query_attention(n: NodeView) -> Lowered:
    """GroupQueryAttention 1 with a cache of floats.

    Rows of a right-padded prompt behind its end, and places of the cache behind the last token, hold other values
    than in onnxruntime, which leaves both unspecified.
    """
    _check_group(n)
    heads, shared = int(n.attr("num_heads")), int(n.attr("kv_num_heads"))
    x = n.tensor(0)
    if n.has(1):
        q, k, v = (n.call(sdpa.split_heads, n.tensor(i), h) for i, h in ((0, heads), (1, shared), (2, shared)))
    else:
        parts = n.call(split_packed, x, heads, shared)
        q, k, v = (n.item(parts, i) for i in range(3))
    start = n.call(cached_tokens, n.tensor(5), x)
    if n.attr("do_rotary", 0):
        positions = n.call(positions_from, start, x, 1)
        if n.has(9):
            positions = n.call(stated_positions, n.tensor(9), n.tensor(6), x)
        cosine, sine = (n.call(functional.embedding, positions, n.tensor(i)) for i in (7, 8))
        turned = bool(n.attr("rotary_interleaved", 0))
        q, k = (n.call(rotate_partly, t, cosine, sine, turned) for t in (q, k))
    length: Any = n.scalar(6)
    if n.has(3):
        length = n.builder.number(shape_math.maximum, length, n.size(3, 2))
    k, v = (n.call(append_to_cache, n.optional(3 + i), t, start, length) for i, t in enumerate((k, v)))
    bias = _group_bias(n, q, k, start)
    sink = n.optional(11)
    if sink is None and int(n.attr("smooth_softmax", -1)) == 1:
        sink = n.call(torch.Tensor.new_zeros, q, heads)
    y = n.call(attend_in_group, q, k, v, bias, sink, n.attr("scale") or None, n.attr("softcap", 0.0))
    return n.call(sdpa.merge_heads, y), k, v


def _check_group(n: NodeView) -> None:
    if n.wants(3) or any(n.has(i) for i in range(12, 17)):
        raise n.refuse("the scores as output, a quantized cache, normalized heads or padded chunks")
    if n.attr("sliding_window_cache", 0) or n.attr("kv_cache_bit_width", 0):
        raise n.refuse("a windowed or quantized cache")


def split_packed(x: torch.Tensor, heads: int, shared: int) -> list[torch.Tensor]:
    """(B, S, (heads + 2 * shared) * D) as queries, keys and values with their heads."""
    width = x.shape[-1] // (heads + 2 * shared)
    parts = torch.split(x, [heads * width, shared * width, shared * width], -1)
    return [sdpa.split_heads(part, h) for part, h in zip(parts, (heads, shared, shared), strict=True)]


def rotate_partly(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Rotate as many features of (B, H, S, D) as the caches have angles for."""
    width = 2 * cosine.shape[-1]
    return rotate(x, cosine, sine, 1, width if width < x.shape[-1] else 0, interleaved)


def keys_in_reach(
    q: torch.Tensor, k: torch.Tensor, start: torch.Tensor, last: torch.Tensor, causal: bool, window: int
) -> torch.Tensor:
    """Bias (B, 1, S, T) that excludes keys behind the query, or behind the last token, or beyond the window."""
    allowed = sdpa.position_mask(q, k, start, causal, window - 1 if window > 0 else -1, -1)
    if not causal:
        allowed = sdpa.length_mask(last + 1, k)
    return sdpa.additive(allowed, q.dtype)


def _group_bias(n: NodeView, q: fx.Node, k: fx.Node, start: fx.Node) -> fx.Node:
    causal, window = bool(n.attr("causal", 1)), int(n.attr("local_window_size", -1))
    bias = n.call(keys_in_reach, q, k, start, n.tensor(5), causal, window)
    if not n.has(10):
        return bias
    return n.call(operator.add, bias, n.call(fit_bias, n.tensor(10), k))


def fit_bias(bias: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """A bias over the tokens, lengthened to the places of the cache."""
    return functional.pad(bias, [0, k.shape[2] - bias.shape[-1]])
