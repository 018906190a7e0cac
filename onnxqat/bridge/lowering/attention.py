"""Attention and what a transformer block of ai.onnx has beside it."""

from __future__ import annotations

import functools
import operator
from typing import Any

import onnx_ir as ir
import torch
from torch import fx
from torch.nn import functional

from onnxqat.bridge.functional import sdpa
from onnxqat.bridge.importing.builder import Lowered, NodeView

HALF_FLOATS = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def attention(n: NodeView) -> Lowered:
    """Attention 23 to 25.

    float32 and float64 without any output in between are one fused call; half floats go step by step, as each
    step of the definition rounds. Refused: a mask that is neither boolean nor of the queries' type.
    """
    rank = n.need_rank(0)
    q, k, v = n.tensor(0), n.tensor(1), n.tensor(2)
    if rank == 3:
        heads, shared = int(n.attr("q_num_heads")), int(n.attr("kv_num_heads"))
        q = n.call(sdpa.split_heads, q, heads)
        k, v = n.call(sdpa.split_heads, k, shared), n.call(sdpa.split_heads, v, shared)
    if n.has(4):
        k, v = n.call(torch.cat, [n.tensor(4), k], 2), n.call(torch.cat, [n.tensor(5), v], 2)
    scores, y = _attention_output(n, q, k, v)
    if rank == 3:
        y = n.call(sdpa.merge_heads, y)
    return y, k, v, scores


def _attention_output(n: NodeView, q: fx.Node, k: fx.Node, v: fx.Node) -> tuple[fx.Node | None, fx.Node]:
    """The scores, where they are an output, and the result (B, H, S, Dv)."""
    scale, softcap = n.attr("scale"), n.attr("softcap", 0.0)
    precision = None if not n.attr("softmax_precision") else n.torch_dtype(n.attr("softmax_precision"))
    if n.dtype(0) is None:
        raise n.refuse("the element type is unknown")
    same = precision is None or precision is n.torch_dtype(n.dtype(0))
    windowed = n.attr("left_window_size", -1) >= 0 or n.attr("right_window_size", -1) >= 0
    if n.dtype(0) not in HALF_FLOATS and same and not softcap and not n.wants(3):
        if n.attr("is_causal", 0) and not (windowed or n.has(3) or n.has(4) or n.has(6)):
            return None, n.call(sdpa.attend_causally, q, k, v, scale)
        return None, n.call(sdpa.attend, q, k, v, _bias(n, q, k), scale)
    bias = _bias(n, q, k)
    raw = n.call(sdpa.scores_of, q, k, scale)
    capped = n.call(sdpa.cap_softly, raw, softcap) if softcap else raw
    weights = n.call(sdpa.probabilities, capped, bias, precision)
    result = n.call(sdpa.weigh, weights, v)
    if not n.wants(3):
        return None, result
    mode = int(n.attr("qk_matmul_output_mode", 0))
    if mode == 2 and bias is not None:
        return n.call(operator.add, capped, bias), result
    return {0: raw, 1: capped, 2: capped, 3: weights}[mode], result


def _bias(n: NodeView, q: fx.Node, k: fx.Node) -> fx.Node | None:
    """The sum of all masks as one bias, None where every key is seen."""
    dtype = n.torch_dtype(n.dtype(0))
    allowed, bias = [], None
    if n.has(3):
        mask = n.tensor(3)
        if (
            n.has(4)
            or _dimension(n, 3, -1) is None
            or _dimension(n, 3, -1) != _dimension(n, 1, 1 if n.need_rank(1) == 3 else 2)
        ):
            mask = n.call(sdpa.pad_mask, mask, k)
        if n.dtype(3) is ir.DataType.BOOL:
            allowed.append(mask)
        elif n.dtype(3) == n.dtype(0):
            bias = mask
        else:
            raise n.refuse("a mask that is neither boolean nor of the queries' type")
    left, right = int(n.attr("left_window_size", -1)), int(n.attr("right_window_size", -1))
    if n.attr("is_causal", 0) or left >= 0 or right >= 0:
        causal = bool(n.attr("is_causal", 0))
        allowed.append(n.call(sdpa.position_mask, q, k, _offset(n, q), causal, left, right))
    if n.has(6):
        allowed.append(n.call(sdpa.length_mask, n.tensor(6), k))
    if not allowed:
        return bias
    both = functools.reduce(lambda a, b: n.call(operator.and_, a, b), allowed)
    made = n.call(sdpa.additive, both, dtype)
    return made if bias is None else n.call(operator.add, bias, made)


def _dimension(n: NodeView, index: int, axis: int) -> int | None:
    dims = n.dims(index)
    return None if dims is None else dims[axis]


def _offset(n: NodeView, q: fx.Node) -> Any:
    """Position of the first query: behind the past, or so that the last query is the last of the valid keys."""
    if n.has(4):
        return n.size(4, 2)
    if n.has(6):
        return n.call(operator.sub, n.tensor(6), n.builder.size(q, 2))
    return 0


def ai_onnx_preview_flex_attention(n: NodeView) -> Lowered:
    """FlexAttention 1 of ai.onnx.preview; its two subgraphs are lowered in place."""
    q, k, v = n.tensor(0), n.tensor(1), n.tensor(2)
    dtype = n.torch_dtype(n.dtype(0))
    stated = n.attr("softmax_precision")
    least = torch.float32 if n.dtype(0) in HALF_FLOATS else dtype
    precision = n.torch_dtype(stated) if stated else least
    scores = n.call(sdpa.scores_of, q, k, n.attr("scale"))
    if precision is not dtype:
        scores = n.call(torch.Tensor.to, scores, precision)
    scores = _modified(n, "score_mod", scores)
    weights = _modified(n, "prob_mod", n.call(sdpa.softmax_over, scores))
    if precision is dtype:
        return n.call(sdpa.weigh, weights, v)
    return n.call(torch.Tensor.to, n.call(sdpa.weigh, weights, n.call(torch.Tensor.to, v, precision)), dtype)


def _modified(n: NodeView, attribute: str, value: fx.Node) -> fx.Node:
    if attribute not in n.node.attributes:
        return value
    graph = n.subgraph(attribute)
    n.builder.define(graph.inputs[0], value)
    n.lower(n.builder, graph)
    return n.builder.tensor(n.builder.lookup(graph.outputs[0]))


def rotate(
    x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, head_axis: int, width: int, interleaved: bool
) -> torch.Tensor:
    """Rotate pairs of features by the angle of their position.

    Args:
        x: four axes, the last one the features of a head.
        cosine: (B, S, width / 2).
        sine: like `cosine`.
        head_axis: axis of the heads in `x`, 1 or 2; the sequence has the other one.
        width: how many features take part, 0 for all.
        interleaved: whether pairs are neighbours; otherwise a feature's partner lies half the width behind it.
    """
    turned = x[..., :width] if width else x
    cosine, sine = cosine.unsqueeze(head_axis), sine.unsqueeze(head_axis)
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned.chunk(2, -1)
    real, imaginary = cosine * first - sine * second, sine * first + cosine * second
    turned = torch.stack([real, imaginary], -1).flatten(-2) if interleaved else torch.cat([real, imaginary], -1)
    return torch.cat([turned, x[..., width:]], -1) if width else turned


def rotate_tokens(
    x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, heads: int, width: int, interleaved: bool
) -> torch.Tensor:
    """:func:`rotate` for (B, S, heads * D)."""
    split = x.reshape(x.shape[0], x.shape[1], heads, -1)
    return rotate(split, cosine, sine, 2, width, interleaved).flatten(-2)


def rotary_embedding(n: NodeView) -> Lowered:
    """RotaryEmbedding 23."""
    cosine, sine = n.tensor(1), n.tensor(2)
    if n.has(3):
        cosine, sine = (n.call(operator.getitem, cache, n.tensor(3)) for cache in (cosine, sine))
    width, interleaved = int(n.attr("rotary_embedding_dim", 0)), bool(n.attr("interleaved", 0))
    if n.need_rank(0) == 4:
        return n.call(rotate, n.tensor(0), cosine, sine, 1, width, interleaved)
    return n.call(rotate_tokens, n.tensor(0), cosine, sine, int(n.attr("num_heads")), width, interleaved)


def write_into_cache(
    cache: torch.Tensor, update: torch.Tensor, start: torch.Tensor | None, axis: int, circular: bool
) -> torch.Tensor:
    """`cache` with `update` written along `axis`, in sample b from ``start[b]`` on."""
    places = torch.arange(update.shape[axis], device=cache.device).unsqueeze(0)
    if start is not None:
        places = places + start.reshape(-1, 1)
    if circular:
        places = places % cache.shape[axis]
    shape = [1] * cache.dim()
    shape[0], shape[axis] = places.shape
    return cache.scatter(axis, places.reshape(shape).expand(update.shape), update)


def tensor_scatter(n: NodeView) -> Lowered:
    """TensorScatter 24."""
    circular = n.attr("mode", "linear") == "circular"
    return n.call(
        write_into_cache, n.tensor(0), n.tensor(1), n.optional(2), int(n.attr("axis", -2)) % n.need_rank(0), circular
    )


def convolve_causally(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, past: torch.Tensor | None, silu: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Depthwise convolution over the past and `x` (B, C, L); the result and the last ``k - 1`` positions read."""
    reach = weight.shape[2] - 1
    padded = functional.pad(x, [reach, 0]) if past is None else torch.cat([past, x], 2)
    y = torch.conv1d(padded, weight, bias, groups=weight.shape[0])
    if silu:
        y = functional.silu(y.to(torch.promote_types(y.dtype, torch.float32))).to(y.dtype)
    return y, padded[:, :, padded.shape[2] - reach :]


def causal_conv_with_state(n: NodeView) -> Lowered:
    """CausalConvWithState 27."""
    activation = n.attr("activation", "none")
    if activation not in ("none", "silu", "swish"):
        raise n.refuse(f"activation {activation}")
    two = n.call(
        convolve_causally, n.tensor(0), n.tensor(1), n.optional(2), n.optional(3), activation in ("silu", "swish")
    )
    return n.item(two, 0), n.item(two, 1)


def attend_linearly(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    past: torch.Tensor | None,
    decay: torch.Tensor | None,
    beta: torch.Tensor | None,
    heads: tuple[int, int],
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """LinearAttention token by token, in float32 at least.

    Args:
        q: (B, T, heads[0] * D).
        k: (B, T, heads[1] * D).
        v: (B, T, heads[1] * Dv).
        past: state (B, heads[1], D, Dv), None for zeros.
        decay: logarithm of what remains of the state, (B, T, heads[1] * D) or (B, T, heads[1]).
        beta: how far the state's answer to `k` is corrected, (B, T, heads[1]) or (B, T, 1); None to add without.
        heads: number of heads of the queries and of the state.
        scale: factor of the result, 0 for ``D ** -0.5``.

    Returns:
        (B, T, heads[0] * Dv) and the last state, in the types of `q` and of `past`.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    queries = sdpa.split_heads(q, heads[0]).to(wide)
    keys, values = sdpa.split_heads(k, heads[1]).to(wide), sdpa.split_heads(v, heads[1]).to(wide)
    gates = None if decay is None else torch.exp(sdpa.split_heads(decay, heads[1]).to(wide)).unsqueeze(-1)
    rates = None if beta is None else beta.transpose(1, 2).unsqueeze(-1).to(wide)
    shape = [q.shape[0], heads[1], keys.shape[-1], values.shape[-1]]
    state = torch.zeros(shape, dtype=wide, device=q.device) if past is None else past.to(wide)
    steps = []
    for t in range(q.shape[1]):
        key, value = keys[:, :, t].unsqueeze(-1), values[:, :, t]
        if gates is not None:
            state = state * gates[:, :, t]
        if rates is not None:
            value = rates[:, :, t] * (value - (state * key).sum(-2))
        state = state + key * value.unsqueeze(-2)
        read = sdpa.repeat_heads(state, queries)
        steps.append((queries[:, :, t].unsqueeze(-1) * read).sum(-2))
    factor = scale or keys.shape[-1] ** -0.5
    y = sdpa.merge_heads(torch.stack(steps, 2) * factor).to(q.dtype)
    return y, state.to(q.dtype if past is None else past.dtype)


def linear_attention(n: NodeView) -> Lowered:
    """LinearAttention 27, in all four rules; the number of tokens is fixed by torch.export and torch.compile."""
    rule = n.attr("update_rule", "gated_delta")
    if rule not in ("linear", "gated", "delta", "gated_delta"):
        raise n.refuse(f"update_rule {rule}")
    if n.has(4) != ("gated" in rule) or n.has(5) != ("delta" in rule):
        raise n.refuse(f"the inputs do not fit update_rule {rule}")
    heads = (int(n.attr("q_num_heads")), int(n.attr("kv_num_heads")))
    inputs = [n.tensor(0), n.tensor(1), n.tensor(2), n.optional(3), n.optional(4), n.optional(5)]
    two = n.call(attend_linearly, *inputs, heads, n.attr("scale", 0.0))
    return n.item(two, 0), n.item(two, 1)
