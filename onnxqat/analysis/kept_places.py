"""Masks in front of a Softmax that are made of whole numbers, 1 for what is kept: (1 - mask) * -3e38 and the like."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.analysis.masks import FAR
from onnxqat.graph import query

_MOVES = frozenset({"Expand", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})
_WHOLE = frozenset({ir.DataType.INT64, ir.DataType.INT32, ir.DataType.INT8, ir.DataType.UINT8})
_COMPUTE: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Neg": np.negative,
    "Where": lambda condition, a, b: np.where(condition != 0, a, b),
    "Not": lambda x: x == 0,
    "Cast": lambda x: x,
}


@dataclasses.dataclass(frozen=True)
class Kept:
    """The places that a mask keeps.

    Attributes:
        root: tensor of whole numbers 0 and 1, or of conditions, that the mask is computed from.
        moves: data movement between `root` and the mask, in graph order.
        inverted: whether 0 is kept.
    """

    root: ir.Value
    moves: tuple[ir.Node, ...]
    inverted: bool


@dataclasses.dataclass(frozen=True)
class _Traced:
    """A value as a function of `root`: what it is for 0 and for 1; without a root, a constant."""

    ends: npt.NDArray[np.float64]
    root: ir.Value | None = None
    moves: tuple[ir.Node, ...] = ()


def of_mask(mask: ir.Value) -> Kept | None:
    """Return what `mask` keeps; None where it is not 0 at kept places and far below every score at the others.

    Whole numbers that a graph is given count as 0 and 1, the numbers of an attention mask.
    """
    found = _traced(mask, 0)
    if found is None or found.root is None:
        return None
    left, kept = sorted(found.ends)
    if kept != 0 or not left <= -FAR:
        return None
    return Kept(found.root, found.moves, bool(found.ends[0] == 0))


def _traced(value: ir.Value | None, depth: int) -> _Traced | None:
    """Trace a value of a mask back to the one tensor that it is computed from; None if there are several or none.

    `ends` are the results for 0 and 1, the two values of a boolean root: they tell which of the two keeps a place.
    """
    if value is None or depth > 32:  # masks are computed in a few steps
        return None
    constant = query.constant_array(value)
    if constant is not None:
        return _Traced(np.full(2, constant.reshape(-1)[0], np.float64)) if constant.size == 1 else None
    node = value.producer()
    if node is None:
        return _Traced(np.array([0.0, 1.0]), value) if value.dtype in {*_WHOLE, ir.DataType.BOOL} else None
    if not node.domain and node.op_type in _MOVES:
        first = _traced(node.inputs[0], depth + 1)
        moved = None if first is None or first.root is None else (*first.moves, node)
        return None if first is None or moved is None else dataclasses.replace(first, moves=moved)
    if node.domain or node.op_type not in _COMPUTE:
        return _Traced(np.array([0.0, 1.0]), value) if value.dtype is ir.DataType.BOOL else None
    operands = [_traced(given, depth + 1) for given in node.inputs]
    known = [one for one in operands if one is not None]
    sources = {(one.root, one.moves) for one in known if one.root is not None}
    if len(known) < len(operands) or len(sources) != 1:
        return None
    with np.errstate(all="ignore"):
        ends = np.asarray(_COMPUTE[node.op_type](*(one.ends for one in known)), np.float64)
    if value.dtype is ir.DataType.BOOL:
        ends = (ends != 0).astype(np.float64)
    ((root, moves),) = sources
    return _Traced(ends, root, moves)
