"""The report of ``diff``."""

from __future__ import annotations

from onnxqat.linting.diff import Difference, PairDifference
from onnxqat.report.model import Cell, Column, Figure, Report, Table


def from_diff(difference: Difference) -> Report:
    """Build the report of ``diff``.

    Args:
        difference: of :func:`onnxqat.linting.diff.diff`.
    """
    a, b = difference.models
    changes = [d.change for d in difference.pairs]
    figures = (
        Figure("quantizers_a", "quantizers of A", difference.quantizers[0], "count", f"opset {difference.opsets[0]}"),
        Figure("quantizers_b", "quantizers of B", difference.quantizers[1], "count", f"opset {difference.opsets[1]}"),
        Figure("same", "the same in both", difference.same, "count"),
        Figure("only_a", "in A alone", changes.count("only in A"), "count"),
        Figure("only_b", "in B alone", changes.count("only in B"), "count"),
        Figure("changed", "in both, different", sum(not c.startswith("only") for c in changes), "count"),
        Figure(
            "codes", "codes of constants that differ", sum(d.codes[0] for d in difference.pairs if d.codes), "count"
        ),
    )
    tables = (_pairs(difference),) if difference.pairs else ()
    return Report(kind="diff", title=f"A: {a}, B: {b}", figures=figures, tables=tables)


def _pairs(difference: Difference) -> Table:
    columns = (
        Column("tensor", "tensor"),
        Column("role", "role"),
        Column("change", "differs in"),
        Column("grid_a", "grid of A"),
        Column("grid_b", "grid of B"),
        Column("granularity_a", "one scale a, A"),
        Column("granularity_b", "one scale a, B"),
        Column("ratio_min", "scale of B / A", "number"),
        Column("ratio_max", "to", "number"),
        Column("zero_point", "zero point, B - A", "count"),
        Column("codes", "codes differ", "count"),
        Column("codes_total", "of", "count"),
        Column("codes_largest", "by up to", "count"),
    )
    rows = tuple(map(_row, difference.pairs))
    return Table("pairs", "Quantizers that differ", columns, rows, shown=100)


def _row(pair: PairDifference) -> tuple[Cell, ...]:
    ratio: tuple[Cell, Cell] = (None, None) if pair.scale_ratio is None else pair.scale_ratio
    codes: tuple[Cell, Cell, Cell] = (None, None, None) if pair.codes is None else pair.codes
    grids, many = pair.grids, pair.granularities
    return (pair.tensor, pair.role, pair.change, *grids, *many, *ratio, pair.zero_points, *codes)
