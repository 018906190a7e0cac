"""Random numbers, drawn from torch's generator: ``torch.manual_seed`` repeats them.

Shapes, element types and distributions are ONNX's. The values are not: the standard leaves them to the runtime, so a
``seed`` in the file has no meaning here and is not read.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.bridge.importing.values import FLOATS


def normal(shape: Any, mean: float, scale: float, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """Normally distributed numbers."""
    return torch.randn(shape, dtype=dtype, device=device) * scale + mean


def uniform(shape: Any, low: float, high: float, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """Evenly distributed numbers, `low` included and `high` not."""
    return torch.rand(shape, dtype=dtype, device=device) * (high - low) + low


def normal_like(x: torch.Tensor, mean: float, scale: float, dtype: torch.dtype | None) -> torch.Tensor:
    """Normally distributed numbers in the shape of `x`, of its type where none is given."""
    return normal(x.shape, mean, scale, dtype or x.dtype, x.device)


def uniform_like(x: torch.Tensor, low: float, high: float, dtype: torch.dtype | None) -> torch.Tensor:
    """Evenly distributed numbers in the shape of `x`, of its type where none is given."""
    return uniform(x.shape, low, high, dtype or x.dtype, x.device)


def binary(probability: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """1 with the given probability, else 0."""
    precise = torch.float64 if probability.dtype is torch.float64 else torch.float32
    drawn = torch.rand(probability.shape, dtype=precise, device=probability.device)
    return (drawn < probability).to(dtype or probability.dtype)


def samples(logits: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Indices drawn with replacement by unnormalized log probabilities: (batch, classes) -> (batch, count)."""
    probability = torch.softmax(logits.detach().to(torch.float32), 1)
    return torch.multinomial(probability, count, replacement=True).to(dtype)


def _float_type(n: NodeView, default: ir.DataType | None) -> torch.dtype | None:
    stated = n.attr("dtype")
    kind = default if stated is None else ir.DataType(stated)
    if kind is not None and kind not in FLOATS:
        raise n.refuse(f"random numbers of type {kind.name}")
    return None if kind is None else n.torch_dtype(kind)


def _range(n: NodeView, first: str, second: str) -> tuple[float, float]:
    return float(n.attr(first, 0.0)), float(n.attr(second, 1.0))


def random_normal(n: NodeView) -> Lowered:
    """RandomNormal 1 and 22."""
    return n.call(normal, n.attr("shape"), *_range(n, "mean", "scale"), _float_type(n, ir.DataType.FLOAT), n.device())


def random_uniform(n: NodeView) -> Lowered:
    """RandomUniform 1 and 22."""
    return n.call(uniform, n.attr("shape"), *_range(n, "low", "high"), _float_type(n, ir.DataType.FLOAT), n.device())


def random_normal_like(n: NodeView) -> Lowered:
    """RandomNormalLike 1 and 22."""
    return n.call(normal_like, n.tensor(0), *_range(n, "mean", "scale"), _float_type(n, n.dtype(0)))


def random_uniform_like(n: NodeView) -> Lowered:
    """RandomUniformLike 1 and 22."""
    return n.call(uniform_like, n.tensor(0), *_range(n, "low", "high"), _float_type(n, n.dtype(0)))


def bernoulli(n: NodeView) -> Lowered:
    """Bernoulli 15 and 22; the input has no gradient."""
    stated = n.attr("dtype")
    return n.call(binary, n.tensor(0), None if stated is None else n.torch_dtype(stated))


def multinomial(n: NodeView) -> Lowered:
    """Multinomial 7 and 22; the input has no gradient."""
    return n.call(samples, n.tensor(0), int(n.attr("sample_size", 1)), n.torch_dtype(n.attr("dtype", 6)))
