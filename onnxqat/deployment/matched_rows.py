"""Rows that a node selected, in the order of the reference: equal scores leave TopK and NonMaxSuppression a choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxqat.deployment.base_compiler import Array
from onnxqat.graph import walk

SELECTORS = ("TopK", "NonMaxSuppression")
MOST_ROWS = 1000
"""Rows of a sample that are matched: each is compared with each."""

_Rows = list[Array]


def selected(model: ir.Model) -> tuple[str, ...]:
    """Outputs of `model` whose rows a TopK or NonMaxSuppression chose, by name; a branch counts as its If or Loop."""
    reached: set[ir.Value] = set()
    for node in model.graph:
        if _selects(node) or any(value in reached for value in node.inputs if value is not None):
            reached.update(node.outputs)
    return tuple(str(value.name) for value in model.graph.outputs if value in reached)


def _selects(node: ir.Node) -> bool:
    return node.op_type in SELECTORS or any(_selects(inner) for graph in walk.subgraphs(node) for inner in graph)


def matched(
    found: Sequence[Mapping[str, Array]], reference: Sequence[Mapping[str, Array]], names: Sequence[str]
) -> tuple[list[dict[str, Array]], int]:
    """`found` with the rows of the outputs `names` in the order of `reference`, and how many rows that moved.

    The outputs are one table: a row of one belongs to the row of the same number in the others. Each row of the reference
    gets the nearest one that is left, nearest pairs first, by the largest difference in units of the output's range. Outputs
    without common rows stay as they are.

    Args:
        found: outputs of the compiler, one dict a batch.
        reference: those of the reference.
        names: of :func:`selected`.
    """
    made, moved = [], 0
    for own, other in zip(found, reference, strict=True):
        present = [n for n in names if n in own and n in other and other[n].dtype.kind in "fiu"]
        orders = _orders(own, other, present)
        batch = dict(own)
        if orders is not None:
            axis, each = orders
            moved += sum(int(np.count_nonzero(order != np.arange(len(order)))) for order in each)
            for name in present:
                batch[name] = (
                    own[name][each[0]] if axis == 0 else np.stack([a[o] for a, o in zip(own[name], each, strict=True)])
                )
        made.append(batch)
    return made, moved


def _orders(own: Mapping[str, Array], other: Mapping[str, Array], names: list[str]) -> tuple[int, list[Array]] | None:
    """The axis of rows, and for each sample the rows of `own` in the order of `other`; None where there is none."""
    if not names or any(own[n].shape != other[n].shape for n in names):
        return None
    arrays = [other[n] for n in names]
    for axis in (1, 0):
        sizes = {a.shape[axis] if a.ndim > axis else -1 for a in arrays}
        batches = {a.shape[:axis] for a in arrays}
        if len(sizes) != 1 or len(batches) != 1 or not 1 < (rows := sizes.pop()) <= MOST_ROWS:
            continue
        spans = [_span(a) for a in arrays]
        mine = [_table([own[n] for n in names], spans, axis, rows), _table(arrays, spans, axis, rows)]
        return axis, [_nearest(a, b) for a, b in zip(*mine, strict=True)]
    return None


def _span(array: Array) -> float:
    usable = array[np.isfinite(array)]
    return float(np.ptp(usable)) or 1.0 if usable.size else 1.0


def _table(arrays: _Rows, spans: list[float], axis: int, rows: int) -> Array:
    """All outputs side by side, (samples, rows, columns), in units of their ranges; NaN lies far away."""
    columns = [
        np.asarray(a, np.float64).reshape(-1, rows, a[(0,) * (axis + 1)].size) / s
        for a, s in zip(arrays, spans, strict=True)
    ]
    return np.nan_to_num(np.concatenate(columns, axis=2), nan=1e6, posinf=1e6, neginf=-1e6)


def _nearest(own: Array, other: Array) -> Array:
    """For each row of `other` the number of its row in `own`."""
    rows = len(other)
    apart = np.zeros((rows, rows))
    for column in range(own.shape[1]):
        np.maximum(apart, np.abs(other[:, None, column] - own[None, :, column]), out=apart)
    # Of equal distances the row in its place comes first, so that what need not move does not.
    away = np.abs(np.subtract.outer(np.arange(rows), np.arange(rows)))
    taken, order = np.zeros(rows, bool), np.full(rows, -1)
    for pair in np.lexsort((away.ravel(), apart.ravel())):
        row, candidate = divmod(int(pair), rows)
        if order[row] < 0 and not taken[candidate]:
            order[row], taken[candidate] = candidate, True
    return order
