"""A decoder with RMSNorm, rotary positions, grouped-query attention, SwiGLU and tied embeddings, and its ONNX export."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from onnxqat.generation.generate import Comparison


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of a decoder."""

    vocabulary: int
    width: int
    inner: int
    heads: int
    shared: int
    layers: int
    base: float = 10000.0
    epsilon: float = 1e-6

    @property
    def head(self) -> int:
        """Width of one head."""
        return self.width // self.heads


class RMSNorm(nn.Module):
    """Normalization by the root of the mean square, written out."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(sizes.width))
        self.epsilon = sizes.epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalize rows of (..., width)."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon) * self.weight


def rotated(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotary embedding of (B, heads, T, head) at `positions` (B, T)."""
    head = x.shape[-1]
    rates = base ** (-torch.arange(0, head, 2) / head)
    angles = (positions.unsqueeze(-1).to(x.dtype) * rates).unsqueeze(1)
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
    one, two = x[..., : head // 2], x[..., head // 2 :]
    return x * cos + torch.cat([-two, one], -1) * sin


class Layer(nn.Module):
    """Attention over the cache and the new tokens, and a gated feed-forward part."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        width, inner = sizes.width, sizes.inner
        self.before, self.behind = RMSNorm(sizes), RMSNorm(sizes)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, sizes.shared * sizes.head, bias=False)
        self.v = nn.Linear(width, sizes.shared * sizes.head, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, positions: Tensor, bias: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Return (B, T, width), and keys and values with those of the new tokens."""
        batch, length, width = x.shape
        heads, shared, head, base = self.sizes.heads, self.sizes.shared, self.sizes.head, self.sizes.base
        y = self.before(x)
        q, k, v = (
            f(y).view(batch, length, count, head).transpose(1, 2)
            for f, count in ((self.q, heads), (self.k, shared), (self.v, shared))
        )
        key = torch.cat([key, rotated(k, positions, base)], 2)
        value = torch.cat([value, v], 2)
        keys, values = (t.repeat_interleave(heads // shared, 1) for t in (key, value))
        scores = rotated(q, positions, base) @ keys.transpose(-1, -2) / head**0.5 + bias
        mixed = (scores.softmax(-1) @ values).transpose(1, 2).reshape(batch, length, width)
        x = x + self.o(mixed)
        y = self.behind(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y)), key, value


class Decoder(nn.Module):
    """A causal language model with a cache."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = RMSNorm(sizes)

    def forward(self, ids: Tensor, mask: Tensor, positions: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        """Return logits (B, T, vocabulary) and the cache."""
        total, new = mask.shape[1], ids.shape[1]
        columns = torch.arange(total)
        hidden = columns.unsqueeze(0) > (columns[total - new :]).unsqueeze(1)
        bias = torch.where(hidden, torch.tensor(-1e4), torch.tensor(0.0))
        x = self.embedding(ids)
        present: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            x, key, value = layer(x, positions, bias, past[2 * index], past[2 * index + 1])
            present += [key, value]
        return (self.norm(x) @ self.embedding.weight.T, *present)

    def empty(self, batch: int) -> list[Tensor]:
        """Return the cache in front of the first token."""
        return [torch.zeros(batch, self.sizes.shared, 0, self.sizes.head) for _ in range(2 * self.sizes.layers)]


def export(net: Decoder, path: Path) -> None:
    """Write `net` with its cache as inputs and outputs, named as optimum names them."""
    kinds = [f"{i}.{kind}" for i in range(net.sizes.layers) for kind in ("key", "value")]
    past, present = [f"past_key_values.{kind}" for kind in kinds], [f"present.{kind}" for kind in kinds]
    axes = {"input_ids": {0: "batch", 1: "new"}, "attention_mask": {0: "batch", 1: "total"}}
    axes |= {"position_ids": {0: "batch", 1: "new"}, "logits": {0: "batch", 1: "new"}}
    axes |= {name: {0: "batch", 2: "past"} for name in past} | {name: {0: "batch", 2: "total"} for name in present}
    cached = [torch.zeros(2, net.sizes.shared, 3, net.sizes.head) for _ in past]
    example = (
        torch.ones(2, 5, dtype=torch.int64),
        torch.ones(2, 8, dtype=torch.int64),
        torch.arange(3, 8).repeat(2, 1),
    )
    torch.onnx.export(
        net,
        (*example, *cached),
        str(path),
        dynamo=False,
        opset_version=17,
        input_names=["input_ids", "attention_mask", "position_ids", *past],
        output_names=["logits", *present],
        dynamic_axes=axes,
    )


def report(name: str, found: Comparison) -> None:
    """Print the line of a quantized decoder."""
    assert found.perplexity[1] is not None
    length = found.tokens[0].shape[1]
    alike = sum(same == length for same in found.same)
    print(
        f"{name:22} perplexity {found.perplexity[0]:.3f} -> {found.perplexity[1]:.3f}; {length} greedy tokens equal in "
        f"{alike} of {len(found.same)}, median of equal tokens {np.median(found.same):.0f}",
        flush=True,
    )
