"""The report of ``lint``."""

from __future__ import annotations

from onnxqat.linting.rule import SEVERITIES, LintReport
from onnxqat.report.model import Column, Figure, Report, Table
from onnxqat.shell import command


def from_lint(report: LintReport) -> Report:
    """Build the report of ``lint``.

    Args:
        report: of :func:`onnxqat.linting.lint.lint`.
    """
    figures = [Figure("quantizers", "quantizers", report.quantizers, "count")]
    if report.backend is not None:
        figures.insert(0, Figure("backend", "backend", report.backend))
    figures += [Figure(f"{severity}s", f"{severity}s", report.count(severity), "count") for severity in SEVERITIES]
    if report.fixed:
        mended = ", ".join(f"{code} ({count})" for code, count in sorted(report.fixed.items()))
        figures.append(Figure("fixed", "mended", sum(report.fixed.values()), "count", mended))
    if not report.quantizers and report.backend is None:
        figures[0] = Figure(
            "quantizers", "quantizers", 0, "count", "give --backend for the pre-flight of a float model"
        )
    return Report(
        kind="lint",
        title=report.model if report.backend is None else f"{report.model} for {report.backend}",
        passed=report.passed,
        figures=tuple(figures),
        tables=tuple(table for table in (_findings(report), _remedies(report)) if table.rows),
        files=(report.output,) if report.output else (),
        next_command=_next_command(report),
    )


def _findings(report: LintReport) -> Table:
    columns = (
        Column("severity", "severity"),
        Column("code", "code"),
        Column("node", "node"),
        Column("tensor", "tensor"),
        Column("message", "what"),
        Column("fixable", "--fix mends it"),
    )
    rows = tuple((f.severity, f.code, f.node, f.tensor, f.message, f.fixable) for f in report.findings)
    return Table("findings", "Findings", columns, rows, shown=100)


def _remedies(report: LintReport) -> Table:
    columns = (Column("code", "code"), Column("reason", "what comes of it"), Column("remedy", "remedy"))
    rows = tuple(dict.fromkeys((f.code, f.reason, f.remedy) for f in report.findings))
    return Table("remedies", "What to do", columns, rows, shown=100)


def _next_command(report: LintReport) -> str:
    if any(finding.fixable for finding in report.findings) and not report.output:
        return command("lint", report.model, backend=report.backend) + " --fix"
    return ""
