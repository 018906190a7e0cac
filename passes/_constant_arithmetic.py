"""Mul, Div, Add and Sub with one constant operand, as affine functions of the other."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxqat.graph import query


@dataclasses.dataclass(frozen=True, eq=False)
class Arithmetic:
    """``data * factor + offset`` with arrays of the shape of the constant, float64."""

    data: ir.Value
    factor: np.ndarray
    offset: np.ndarray


def of(node: ir.Node) -> Arithmetic | None:
    """Return the function that `node` computes; None for other operators, two constants or none, and a constant divided."""
    if node.domain or node.op_type not in ("Mul", "Div", "Add", "Sub"):
        return None
    for index, data in enumerate(node.inputs):
        constant = query.constant_array(node.inputs[1 - index])
        if data is None or constant is None or constant.dtype.kind != "f" or query.constant_array(data) is not None:
            continue
        parts = _parts(node.op_type, constant.astype(np.float64), is_first=index == 0)
        return None if parts is None else Arithmetic(data, *parts)
    return None


def _parts(op_type: str, constant: np.ndarray, *, is_first: bool) -> tuple[np.ndarray, np.ndarray] | None:
    """Factor and offset of `op_type`, whose data are its first operand or its second one."""
    ones, zeros = np.ones_like(constant), np.zeros_like(constant)
    if op_type == "Mul":
        return constant, zeros
    if op_type == "Add":
        return ones, constant
    if op_type == "Sub":
        return (ones, -constant) if is_first else (-ones, constant)
    if not is_first or not constant.all():
        return None  # no affine function, or one that gives infinities
    return 1.0 / constant, zeros


def along(array: np.ndarray, rank: int, axis: int) -> np.ndarray | None:
    """Return the values of `array` along `axis` of a tensor of `rank` dimensions, (C,) or (1,).

    None where it varies along another axis, or has more dimensions than the tensor.
    """
    if array.ndim > rank:
        return None
    shape = (1,) * (rank - array.ndim) + array.shape
    others = shape[: axis % rank] + shape[axis % rank + 1 :]
    return array.reshape(-1) if all(size == 1 for size in others) else None
