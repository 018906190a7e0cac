"""The report of ``explain``."""

from __future__ import annotations

from onnxqat.linting.explain import Explanation, Pair
from onnxqat.report.model import Cell, Column, Figure, LeftFloat, Report, Table


def from_explain(explanation: Explanation) -> Report:
    """Build the report of ``explain``.

    Args:
        explanation: of :func:`onnxqat.linting.explain.explain`.
    """
    roles = ("activation", "weight", "bias")
    counts = {role: sum(p.role == role for p in explanation.pairs) for role in roles}
    figures = [
        Figure("opset", "opset", explanation.opset, "count"),
        Figure("quantizers", "quantizers", len(explanation.pairs), "count"),
        *(Figure(role, f"of {'biases' if role == 'bias' else role + 's'}", n, "count") for role, n in counts.items()),
        Figure("float_nodes", "nodes in float", len(explanation.float_nodes), "count"),
    ]
    if explanation.backend is not None:
        unwanted = sum(p.wanted == "" for p in explanation.pairs)
        figures.insert(0, Figure("backend", "backend", explanation.backend))
        figures.append(Figure("unwanted", "pairs that its table does not ask for", unwanted, "count"))
    return Report(
        kind="explain",
        title=explanation.model,
        figures=tuple(figures),
        tables=(
            *((_pairs(explanation),) if explanation.pairs else ()),
            *((_joins(explanation),) if explanation.joins else ()),
        ),
        left_float=tuple(LeftFloat(f"{f.node} ({f.op_type})", f.reason) for f in explanation.float_nodes),
    )


def _pairs(explanation: Explanation) -> Table:
    columns = [
        Column("tensor", "tensor"),
        Column("role", "role"),
        Column("grid", "grid"),
        Column("granularity", "one scale a"),
        Column("scale_min", "scale", "number"),
        Column("scale_max", "to", "number"),
        Column("zero_point", "zero point"),
        Column("maker", "made by"),
        Column("readers", "read by"),
        Column("rule", "placed by"),
    ]
    wanted = explanation.backend is not None
    columns += [Column("wanted", f"{explanation.backend} wants it for")] if wanted else []
    rows = tuple((*_row(pair), pair.wanted or "-") if wanted else _row(pair) for pair in explanation.pairs)
    return Table("pairs", "Quantizers", tuple(columns), rows, shown=max(len(rows), 1))


def _joins(explanation: Explanation) -> Table:
    columns = (
        Column("node", "Concat"),
        Column("tensor", "branch"),
        Column("scale", "scale", "number"),
        Column("shared_scale", "on one grid", "number"),
        Column("bits_lost", "bits lost there", "number"),
        Column("requantized", "numbers requantized otherwise", "count"),
    )
    rows = tuple(
        (j.node, j.tensor, j.scale, j.shared_scale, round(j.bits_lost, 2) + 0.0, j.requantized)
        for j in explanation.joins
    )
    return Table(
        "joins", "Concats: one grid for all branches, or a requantization of each", columns, rows, shown=len(rows)
    )


def _row(pair: Pair) -> tuple[Cell, ...]:
    low, high = pair.zero_point
    zero = str(low) if low == high else f"{low}..{high}"
    ends = pair.scale[0], None if pair.scale[0] == pair.scale[1] else pair.scale[1]
    readers = ", ".join(pair.readers) or "the graph's output"
    maker = pair.maker or "-"
    return (pair.tensor, pair.role, pair.grid, pair.granularity, *ends, zero, maker, readers, pair.rule or "-")
