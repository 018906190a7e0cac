"""The report of ``backends probe``."""

from __future__ import annotations

from onnxqat.deployment.probe import ProbeReport
from onnxqat.deployment.probe_pairs import PairReport
from onnxqat.report.model import Column, Figure, Report, Table


def from_probe(report: ProbeReport) -> Report:
    """Build the report of ``backends probe``.

    Args:
        report: of :func:`onnxqat.deployment.probe.probe`.
    """
    columns = (
        Column("name", "operator"),
        Column("table", "table"),
        Column("outcome", "compiler"),
        Column("steps", "largest difference, LSB", "number"),
        Column("detail", "as"),
    )
    rows = tuple((r.name, r.table, r.outcome, r.steps, r.detail) for r in report.rows)
    parted = tuple((r.name, r.difference, r.detail) for r in report.differences)
    heads = (Column("name", "operator"), Column("difference", "difference"), Column("detail", "compiler"))
    tables = [Table("rows", "One operator between Q/DQ", columns, rows, shown=max(len(rows), 1))]
    if parted:
        title = f"Where the table of {report.backend} and the compiler part"
        tables.append(Table("differences", title, heads, parted, shown=len(parted)))
    return Report(
        kind="probe",
        title=f"{report.compiler} {report.version} beside the table of {report.backend}",
        figures=(
            Figure("operators", "operators", len(rows), "count"),
            Figure("integer", "on integers", sum(r.integer for r in report.rows), "count"),
            Figure("differences", "differences from the table", len(parted), "count"),
        ),
        tables=tuple(tables),
    )


def from_pairs(report: PairReport) -> Report:
    """Build the report of ``backends probe --pairs``.

    Args:
        report: of :func:`onnxqat.deployment.probe_pairs.probe_pairs`.
    """
    columns = (
        Column("name", "pair"),
        Column("alone", "alone"),
        Column("together", "together"),
        Column("steps", "largest difference, LSB", "number"),
        Column("detail", "as"),
    )
    rows = tuple((r.name, ", ".join(r.alone), ", ".join(r.together), r.steps, r.detail) for r in report.rows)
    parted = tuple((r.name, r.difference, r.detail) for r in report.differences)
    heads = (Column("name", "pair"), Column("difference", "difference"), Column("detail", "compiler"))
    tables = [Table("rows", "Two operators as the table places them", columns, rows, shown=max(len(rows), 1))]
    if parted:
        tables.append(
            Table("differences", "Where a pair runs otherwise than its parts", heads, parted, shown=len(parted))
        )
    return Report(
        kind="probe",
        title=f"Pairs of operators in {report.compiler} {report.version}, placed by the table of {report.backend}",
        figures=(
            Figure("pairs", "pairs", len(rows), "count"),
            Figure("told", "refused by the table before compiling", sum(r.told for r in report.rows), "count"),
            Figure("differences", "otherwise than their parts", len(parted), "count"),
        ),
        tables=tuple(tables),
    )
