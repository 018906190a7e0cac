"""The part of the report of ``insert-qdq`` about what its guard changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxqat.report.model import Column, Figure, Table, rows_of

if TYPE_CHECKING:
    from onnxqat.insertion.guard import Guarded

_COLUMNS = (
    Column("tensor", "tensor"),
    Column("kind", "remedy"),
    Column("output", "output"),
    Column("without_db", "without", "decibel"),
    Column("with_db", "with", "decibel"),
    Column("cost", "integer nodes", "count"),
    Column("nodes", "left in float"),
)


def figures(guarded: Guarded | None) -> list[Figure]:
    """Signal to noise before, and how much was looked at."""
    if guarded is None:
        return []
    found = [Figure("guard_runs", "runs of the guard", guarded.runs, "count", "of a few samples each")]
    if guarded.before is not None and guarded.changes:
        note = "of the worst output, as table and calibration gave it"
        found.append(Figure("sqnr_before", "signal to noise before", guarded.before.worst, "decibel", note))
    return found


def tables(guarded: Guarded | None) -> tuple[Table, ...]:
    """One row a change."""
    if guarded is None or not guarded.changes:
        return ()
    note = f"Without: all other changes alone. Integer nodes: those that become float, of {guarded.integer_nodes}."
    return (Table("guard", "What the guard changed", _COLUMNS, rows_of(guarded.changes, _COLUMNS), note=note),)
