"""Rows that a node selected, in the order of the reference: equal scores leave TopK and NonMaxSuppression a choice."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxqat.deployment.base_compiler import Array
from onnxqat.deployment.outputs import OutputCheck
from onnxqat.graph import walk
from onnxqat.types import Remark

SELECTORS = ("TopK", "NonMaxSuppression")
MOST_ROWS = 1000
"""Rows of a sample that are matched: each is compared with each."""

HALF, FAR = 0.5, 10.0
"""A row was chosen otherwise where it is further from its own than this share of the way to the nearest other row, and so
many times as far as half of the rows are: in RT-DETR rows that were chosen alike are at most 4 times as far, others 30."""

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


@dataclasses.dataclass(frozen=True, eq=False)
class Matched:
    """Outputs of a compiler with rows in the order of the reference.

    Attributes:
        found: one dict a batch.
        paired: the same with the reference's values in place of rows that were chosen otherwise.
        moved: rows that moved.
        rows: rows that were matched or chosen otherwise; those of a table of several outputs once.
        others: rows that were chosen otherwise (:data:`FAR`).
        names: outputs that rows were looked for in.
    """

    found: Sequence[Mapping[str, Array]]
    paired: Sequence[Mapping[str, Array]]
    moved: int = 0
    rows: int = 0
    others: int = 0
    names: tuple[str, ...] = ()

    @property
    def remark(self) -> Remark | None:
        """Sentence about the rows; None where nothing was."""
        listed = ", ".join(map(repr, self.names))
        if self.others:
            text = (
                f"{listed}: {self.others} of {self.rows} rows are others than those of the reference, as rows are chosen by "
                "scores, and rounding decides between scores that are nearly the same"
            )
        else:
            text = f"{listed}: {self.moved} rows come in another order, as their scores tie; they were matched"
        return Remark(text, source="handoff") if self.moved or self.others else None

    def counted(self, checks: tuple[OutputCheck, ...], of_paired: tuple[OutputCheck, ...]) -> tuple[OutputCheck, ...]:
        """`checks` of :attr:`found` with the rows, and the largest difference in `of_paired`, those of :attr:`paired`."""
        return tuple(
            dataclasses.replace(c, rows=self.rows, other_rows=self.others, matched_steps=p.largest_steps)
            if c.output in self.names and self.rows
            else c
            for c, p in zip(checks, of_paired, strict=True)
        )


def matched(
    found: Sequence[Mapping[str, Array]], reference: Sequence[Mapping[str, Array]], names: Sequence[str]
) -> Matched:
    """Put the rows of the outputs `names` in `found` in the order of `reference`.

    The outputs are one table: a row of one belongs to the row of the same number in the others. Each row of the reference
    gets the nearest one that is left, nearest pairs first, by the largest difference in units of the output's range. Outputs
    without common rows stay as they are.

    Args:
        found: outputs of the compiler, one dict a batch.
        reference: those of the reference.
        names: of :func:`selected`.
    """
    made: list[dict[str, Array]] = []
    paired: list[dict[str, Array]] = []
    moved = rows = others = 0
    for own, other in zip(found, reference, strict=True):
        present = [n for n in names if n in own and n in other and other[n].dtype.kind in "fiu"]
        orders = _orders(own, other, present)
        made.append(dict(own))
        paired.append(dict(own))
        if orders is None:
            continue
        axis, each = orders
        for pairs in each:
            moved += int(np.count_nonzero(pairs.order != np.arange(len(pairs.order))))
            rows, others = rows + len(pairs.order), others + int(np.count_nonzero(~pairs.alike))
        for name in present:
            if axis == 0:
                made[-1][name] = own[name][each[0].order]
            else:
                made[-1][name] = np.stack([a[p.order] for a, p in zip(own[name], each, strict=True)])
            alike = each[0].alike if axis == 0 else np.stack([p.alike for p in each])
            alike = alike.reshape(alike.shape + (1,) * (other[name].ndim - alike.ndim))
            paired[-1][name] = np.where(alike, made[-1][name], other[name])
    return Matched(made, paired, moved, rows, others, tuple(names))


@dataclasses.dataclass(frozen=True, eq=False)
class _Pairs:
    """For each row of the reference the row that it is matched with, and whether both were chosen alike."""

    order: Array
    alike: Array


def _orders(own: Mapping[str, Array], other: Mapping[str, Array], names: list[str]) -> tuple[int, list[_Pairs]] | None:
    """The axis of rows, and for each sample which of them belong together; None where there is none."""
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


def _nearest(own: Array, other: Array) -> _Pairs:
    """For each row of `other` its row in `own`."""
    rows = len(other)
    apart = _distances(other, own)
    # Of equal distances the row in its place comes first, so that what need not move does not.
    away = np.abs(np.subtract.outer(np.arange(rows), np.arange(rows)))
    taken, order = np.zeros(rows, bool), np.full(rows, -1)
    for pair in np.lexsort((away.ravel(), apart.ravel())):
        row, candidate = divmod(int(pair), rows)
        if order[row] < 0 and not taken[candidate]:
            order[row], taken[candidate] = candidate, True
    distance, within = apart[np.arange(rows), order], _distances(other, other)
    np.fill_diagonal(within, np.inf)
    # A row that is further away than half the way to the next one may be that, or another altogether.
    doubtful = distance > HALF * within.min(axis=1)
    return _Pairs(order, ~(doubtful & (distance > FAR * np.median(distance))))


def _distances(first: Array, second: Array) -> Array:
    """Largest difference of any column, for each row of `first` and each of `second`."""
    apart = np.zeros((len(first), len(second)))
    for column in range(first.shape[1]):
        np.maximum(apart, np.abs(first[:, None, column] - second[None, :, column]), out=apart)
    return apart
