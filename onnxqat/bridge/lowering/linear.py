"""Matrix products."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.nn import functional

from onnxqat.bridge.importing.builder import Lowered, NodeView


def general_product(a: torch.Tensor, b: torch.Tensor, c: Any, alpha: float, beta: float) -> torch.Tensor:
    """``alpha * a @ b + beta * c``."""
    product = torch.matmul(a, b)
    if alpha != 1.0:
        product = (product * alpha).to(a.dtype)
    if c is None or beta == 0.0:
        return product
    added: torch.Tensor = c if beta == 1.0 else (c * beta).to(a.dtype)
    return product + added


def biased_product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None) -> torch.Tensor:
    """``a @ b + c`` of two matrices and a row, which torch.addmm adds without another pass over memory."""
    return torch.matmul(a, b) if c is None else torch.addmm(c, a, b)


def gemm(n: NodeView) -> Lowered:
    """Gemm 1 to 13; the usual layer is one ``torch.nn.functional.linear``."""
    alpha, beta = n.attr("alpha", 1.0), n.attr("beta", 1.0)
    a, b, c = n.tensor(0), n.tensor(1), n.optional(2)
    if n.rank(0) == 1:  # which ONNX does not have: onnxruntime takes it for a row, and for a column with transA
        a = n.call(torch.reshape, a, (-1, 1) if n.attr("transA", 0) else (1, -1))
    elif n.attr("transA", 0):
        a = n.call(torch.t, a)
    bias_rank = n.rank(2) if c is not None else 1
    usual = alpha == beta == 1.0 and bias_rank == 1 and n.is_float(0)
    if n.attr("transB", 0) and usual:
        return n.call(functional.linear, a, b, c)
    if n.attr("transB", 0):
        b = n.call(torch.t, b)
    if c is None and alpha == 1.0:
        return n.call(torch.matmul, a, b)
    if usual and not n.attr("transB", 0):
        return n.call(biased_product, a, b, c)
    return n.call(general_product, a, b, c, alpha, beta)


def mat_mul(n: NodeView) -> Lowered:
    """MatMul 1 to 13."""
    return n.call(torch.matmul, n.tensor(0), n.tensor(1))


def einsum(n: NodeView) -> Lowered:
    """Einsum 12 to 28."""
    equation = str(n.attr("equation")).replace(" ", "")
    if any(n.rank(i) == 0 for i in range(n.count)) and "..." not in equation and "," not in equation:
        return n.call(operator.pos, n.tensor(0))
    return n.call(torch.einsum, equation, *[n.tensor(i) for i in range(n.count)])


def determinant(x: torch.Tensor) -> torch.Tensor:
    """Determinants of the matrices in the last two axes; in float32 where the type is narrower."""
    wide = x if x.dtype is torch.float64 else x.to(torch.float32)
    found: torch.Tensor = torch.linalg.det(wide)
    return found.to(x.dtype)


def det(n: NodeView) -> Lowered:
    """Det 11 and 22."""
    return n.call(determinant, n.tensor(0))
