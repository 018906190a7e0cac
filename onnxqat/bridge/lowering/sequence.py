"""Sequences and optional values: a Python list of tensors, and None or the value itself.

A position or a length that is shape arithmetic stays a number, so that such graphs export; a position that is data
is read back from its tensor. Lists are never changed in place, as an ONNX value may be read twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import fx

from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.bridge.importing.values import Const, Dims


def sequence_of(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """A sequence of `tensors`."""
    return list(tensors)


def _checked(position: int, smallest: int, largest: int) -> int:
    if not smallest <= position <= largest:
        raise IndexError(f"position {position} is outside {smallest} to {largest} of the sequence")
    return position


def inserted(sequence: list[torch.Tensor], tensor: torch.Tensor, position: int | None) -> list[torch.Tensor]:
    """`sequence` with `tensor` in front of `position`, at the end without one."""
    count = len(sequence)
    place = count if position is None else _checked(position, -count, count) % (count + (position >= 0))
    return [*sequence[:place], tensor, *sequence[place:]]


def erased(sequence: list[torch.Tensor], position: int) -> list[torch.Tensor]:
    """`sequence` without its element at `position`."""
    place = _checked(position, -len(sequence), len(sequence) - 1) % len(sequence)
    return [*sequence[:place], *sequence[place + 1 :]]


def element_at(sequence: list[torch.Tensor], position: int) -> torch.Tensor:
    """The element at `position`, negative from the end."""
    return sequence[_checked(position, -len(sequence), len(sequence) - 1)]


def split_into(x: torch.Tensor, sizes: Any, axis: int) -> list[torch.Tensor]:
    """Slices of `x`: of the length `sizes` each, the last one perhaps shorter, or of each length in a list."""
    return list(torch.split(x, sizes, axis))


def unstacked(x: torch.Tensor, axis: int) -> list[torch.Tensor]:
    """Slices of `x` without `axis`."""
    return list(x.unbind(axis))


def mapped(
    body: Any, sequence: list[torch.Tensor], others: Sequence[Any], captured: Sequence[Any], count: int
) -> tuple[list[torch.Tensor], ...]:
    """SequenceMap: `body` over `sequence`; of `others`, lists are walked along and tensors repeated.

    Returns:
        `count` sequences, one an output of the body.
    """
    results: tuple[list[torch.Tensor], ...] = tuple([] for _ in range(count))
    for index, element in enumerate(sequence):
        extra = [other[index] if isinstance(other, list) else other for other in others]
        for result, value in zip(results, body(element, *extra, *captured), strict=True):
            result.append(value)
    return results


def nothing() -> None:
    """The empty optional value."""
    return


def present(value: Any) -> bool:
    """Check whether an optional value has an element."""
    return value is not None


def element_of(value: Any) -> Any:
    """Return the element of an optional value."""
    if value is None:
        raise ValueError("an optional value without element is read")
    return value


def sequence_empty(n: NodeView) -> Lowered:
    """SequenceEmpty 11; the element type is that of what gets inserted."""
    return n.call(sequence_of)


def sequence_construct(n: NodeView) -> Lowered:
    """SequenceConstruct 11."""
    return n.call(sequence_of, *(n.tensor(i) for i in range(n.count)))


def sequence_insert(n: NodeView) -> Lowered:
    """SequenceInsert 11."""
    return n.call(inserted, n.tensor(0), n.tensor(1), n.scalar(2) if n.has(2) else None)


def sequence_erase(n: NodeView) -> Lowered:
    """SequenceErase 11."""
    return n.call(erased, n.tensor(0), n.scalar(1) if n.has(1) else -1)


def sequence_at(n: NodeView) -> Lowered:
    """SequenceAt 11."""
    return n.call(element_at, n.tensor(0), n.scalar(1))


def sequence_length(n: NodeView) -> Lowered:
    """SequenceLength 11; a number of shape arithmetic."""
    return _as_dims(n, n.call(len, n.tensor(0)), ir.DataType.INT64)


def _as_dims(n: NodeView, node: fx.Node, dtype: ir.DataType) -> Dims:
    array = np.empty((), dtype=object)
    array[()] = node
    return n.numbers(array, dtype)


def split_to_sequence(n: NodeView) -> Lowered:
    """SplitToSequence 11 and 24."""
    axis = int(n.attr("axis", 0))
    if not n.has(1):
        if n.attr("keepdims", 1):
            return n.call(split_into, n.tensor(0), 1, axis)
        return n.call(unstacked, n.tensor(0), axis)
    return n.call(split_into, n.tensor(0), n.scalar(1) if n.need_rank(1) == 0 else n.ints(1), axis)


def concat_from_sequence(n: NodeView) -> Lowered:
    """ConcatFromSequence 11."""
    function = torch.stack if n.attr("new_axis", 0) else torch.cat
    return n.call(function, n.tensor(0), int(n.attr("axis")))


def sequence_map(n: NodeView) -> Lowered:
    """SequenceMap 17."""
    scope, graph = n.scope("body"), n.subgraph("body")
    for value in graph.inputs:
        scope.define(value, scope.placeholder(str(value.name or "")))
    n.lower(scope, graph)
    body = n.close_scope(scope, [scope.tensor(scope.lookup(v)) for v in graph.outputs])
    others = [n.tensor(i) for i in range(1, n.count)]
    results = n.call(mapped, body, n.tensor(0), others, list(scope.captured), len(graph.outputs))
    return tuple(n.item(results, i) if n.wants(i) else None for i in range(len(n.node.outputs)))


def optional(n: NodeView) -> Lowered:
    """Optional 15 and 28."""
    return n.value(0) if n.has(0) else n.call(nothing)


def optional_has_element(n: NodeView) -> Lowered:
    """OptionalHasElement 15 to 28; known at import unless the input has an optional type."""
    if not n.has(0):
        return n.numbers(np.array(False, dtype=object), ir.DataType.BOOL)
    value, kind = n.value(0), n.node.inputs[0].type if n.node.inputs[0] is not None else None
    if isinstance(value, (Const, Dims)) or isinstance(kind, (ir.TensorType, ir.SequenceType)):
        return n.numbers(np.array(True, dtype=object), ir.DataType.BOOL)
    return _as_dims(n, n.call(present, value), ir.DataType.BOOL)


def optional_get_element(n: NodeView) -> Lowered:
    """OptionalGetElement 15 to 28."""
    value = n.value(0)
    if isinstance(value, (Const, Dims)):
        return value
    return n.call(element_of, value)
