"""The report of ``handoff``."""

from __future__ import annotations

from pathlib import Path

from onnxqat.counts import counted
from onnxqat.deployment.base_compiler import ABSORBED
from onnxqat.deployment.result import HandoffReport
from onnxqat.report import build_scores
from onnxqat.report.model import Column, Figure, LeftFloat, Report, Table, rows_of
from onnxqat.shell import command

_RUNS = {"float": "float model", "file": "file handed in", "compiled": "compiled"}

_KINDS = {"integer": "integers", "moved": "integers, moved", "float": "float", "rejected": "rejected"}


def from_handoff(report: HandoffReport) -> Report:
    """Build the report of ``handoff``.

    Args:
        report: of :func:`onnxqat.deployment.handoff.handoff`.
    """
    integer, total = (sum(getattr(c, key) for c in report.coverage) for key in ("integer", "total"))
    compiled = f"{report.compiler} {report.version}" if report.compiler else None
    figures = [
        *build_scores.figures(report.scores, _RUNS),
        Figure("backend", "backend", report.backend),
        Figure("compiler", "compiler", compiled, note="" if compiled else "nothing was compiled"),
        Figure("opset", "opset", report.opset, "count", f"IR version {report.ir_version}"),
        Figure("same_as_train_form", "bits of the deploy form in onnxruntime are unchanged", report.same_as_train_form),
    ]
    if report.settings:
        told = ", ".join(f"{key} {value}" for key, value in report.settings.items())
        figures.append(Figure("settings", "compiled with", told))
    if total:
        figures.append(Figure("integer", "heavy nodes on integers", integer, "count", f"of {total}"))
    figures += [
        Figure(f"largest_steps_{c.output}", f"largest difference of {c.output}, LSB", c.largest_steps, "number", c.unit)
        for c in report.outputs
    ]
    root = Path(report.output)
    left = tuple(LeftFloat(n.name, f"{report.compiler} runs it as {n.detail}: {n.why}") for n in report.float_nodes)
    return Report(
        kind="handoff",
        title=f"{report.model} for {report.backend}",
        passed=report.passed,
        verdicts=report.verdicts,
        figures=tuple(figures),
        tables=tuple(
            t
            for t in (*build_scores.table(report.scores, _RUNS), _coverage(report), _steps(report), _nodes(report))
            if t.rows
        ),
        failures=report.failures,
        remarks=report.remarks,
        files=tuple(str(root / name) for name in report.files),
        left_float=left,
        next_command=_next_command(report),
    )


def _next_command(report: HandoffReport) -> str:
    """Return the first remedy of a red verdict; without one ``lint`` where the hand-off failed, else nothing."""
    red = [v for v in report.verdicts if v.status == "red"]
    usual = command("lint", report.model, backend=report.backend) if report.passed is False else ""
    return next((v.remedy for v in red if v.remedy), usual)


def _coverage(report: HandoffReport) -> Table:
    columns = (
        Column("op_type", "operator"),
        Column("integer", "on integers", "count"),
        Column("total", "nodes", "count"),
        Column("share", "share", "share", bar=True),
    )
    rows = tuple((c.op_type, c.integer, c.total, c.integer / c.total) for c in report.coverage)
    return Table("coverage", "Integer coverage", columns, rows)


def _steps(report: HandoffReport) -> Table:
    columns: tuple[Column, ...] = (
        Column("output", "output"),
        Column("unit", "a step is that of the"),
        Column("step", "step", "number"),
        Column("largest_steps", "largest difference, LSB", "number"),
        Column("mean_steps", "mean, LSB", "number"),
        Column("beyond", "beyond the limit", "share"),
        Column("sqnr_db", "signal to noise", "decibel"),
        Column("differing_top1", "top-1 differ", "count"),
        Column("unlike_integers", "unlike integers", "count"),
    )
    if any(c.other_rows for c in report.outputs):
        columns += (Column("other_rows", "other rows", "count"), Column("matched_steps", "without them, LSB", "number"))
    note = f"Against the file handed in, in onnxruntime with optimizations off, on {counted(report.samples, 'sample')}."
    if any(c.unlike_integers is not None for c in report.outputs):
        note += " Unlike integers: values that are not those of execution in integers."
    if any(c.other_rows for c in report.outputs):
        note += " Other rows: rows that TopK or NonMaxSuppression chose, and chose otherwise in the reference."
    return Table("outputs", "Outputs", columns, rows_of(report.outputs, columns), note=note)


def runs_on(kind: str, detail: str) -> str:
    """Words for the numbers that a compiled node computes with, "-" for one that became part of another."""
    return "-" if detail == ABSORBED else _KINDS.get(kind, kind)


def _nodes(report: HandoffReport) -> Table:
    columns = (
        Column("name", "node"),
        Column("op_type", "operator"),
        Column("kind", "runs on"),
        Column("detail", "as"),
        Column("steps", "largest difference, LSB", "number"),
        Column("own_steps", "by itself", "number"),
        Column("why", "why not on integers"),
    )
    rows = tuple(
        (n.name, n.op_type, runs_on(n.kind, n.detail), n.detail, n.steps, n.own_steps, n.why) for n in report.nodes
    )
    note = (
        "A step is that of the quantizer behind the node. The difference has in it what came before the node; by itself "
        "is from what the reference makes of the node's own inputs in the compiler."
    )
    return Table("nodes", "Nodes", columns, rows, note=note)
