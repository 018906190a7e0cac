"""Operators that make constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from onnxqat.bridge.importing.builder import FOLD_LIMIT, Lowered, NodeView
from onnxqat.bridge.importing.values import INTEGERS, Const
from onnxqat.graph import query


def constant(n: NodeView) -> Lowered:
    """Constant 1 to 25: dense tensors and numbers; strings and sparse tensors are refused."""
    found = query.constant_tensor(n.node.outputs[0])
    if found is None:
        raise n.refuse("neither a tensor nor numbers")
    return Const(str(n.node.outputs[0].name or ""), found)


def constant_of_shape(n: NodeView) -> Lowered:
    """ConstantOfShape 9 to 25."""
    given = n.attr("value")
    fill = np.zeros(1, np.float32) if given is None else np.asarray(given.numpy())
    dtype = ir.DataType.FLOAT if given is None else given.dtype
    shape = n.ints(0)
    number = fill.reshape(()).item()
    torch_dtype = n.torch_dtype(dtype)
    if isinstance(shape, list) and all(isinstance(d, int) for d in shape):
        sizes = [int(d) for d in shape if isinstance(d, int)]
        if dtype in INTEGERS | {ir.DataType.BOOL} and np.prod(sizes) <= FOLD_LIMIT:
            return n.numbers(np.full(sizes, number, dtype=object), dtype)
        filled = np.full(sizes, fill.reshape(()), dtype=fill.dtype)
        return Const(str(n.node.outputs[0].name or ""), ir.Tensor(filled, dtype=dtype), trainable=False)
    return n.call(torch.full, shape, number, dtype=torch_dtype, device=n.device())


def counted_range(start: Any, limit: Any, delta: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """``start + i * delta`` below `limit`, each term multiplied out as in ONNX's reference."""
    if dtype.is_floating_point:
        count = max(int(np.ceil((limit - start) / delta)), 0)
        terms: torch.Tensor = torch.arange(count, device=device, dtype=torch.float64) * delta + start
        return terms.to(dtype)
    return torch.arange(start, limit, delta, dtype=dtype, device=device)


def range_(n: NodeView) -> Lowered:
    """Range 11 and 27."""
    dtype = n.dtype(0)
    start, limit, delta = (n.scalar(i) for i in range(3))
    known = [v for v in (start, limit, delta) if isinstance(v, (int, float))]
    if len(known) == 3 and dtype in INTEGERS:
        found = np.arange(*known)
        if found.size <= FOLD_LIMIT:
            return n.numbers(found.astype(object), dtype)
    return n.call(counted_range, start, limit, delta, n.torch_dtype(dtype), n.device())


def diagonal_like(x: torch.Tensor, offset: int, dtype: torch.dtype | None) -> torch.Tensor:
    """Ones on a diagonal, in the shape of `x`."""
    rows = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    columns = torch.arange(x.shape[1], device=x.device)
    return (columns - rows == offset).to(dtype or x.dtype)


def eye_like(n: NodeView) -> Lowered:
    """EyeLike 9 and 22."""
    dtype = n.attr("dtype")
    return n.call(diagonal_like, n.tensor(0), int(n.attr("k", 0)), None if dtype is None else n.torch_dtype(dtype))
