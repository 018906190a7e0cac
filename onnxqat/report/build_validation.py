"""The report of ``validate``."""

from __future__ import annotations

import math

from onnxqat.counts import counted
from onnxqat.report import build_scores
from onnxqat.report.model import Column, Figure, LeftFloat, Report, Table, rows_of
from onnxqat.types import Remark
from onnxqat.validation.result import DEFAULT, FLOAT, INTEGERS, PLAIN, RUNS, TORCH, ValidationReport

_SHORT = {
    FLOAT: "float model",
    TORCH: "torch",
    PLAIN: "onnxruntime, as written",
    DEFAULT: "onnxruntime, default",
    INTEGERS: "torch, in integers",
}


def from_validation(report: ValidationReport) -> Report:
    """Build the report of ``validate``; the next command is the first remedy, of a red verdict where one has any.

    Args:
        report: of :func:`onnxqat.validation.validate.validate`.
    """
    figures = [Figure("samples", "samples", report.samples, "count", report.data)]
    for accuracy in report.accuracies:
        note = "" if accuracy.against == "labels" else "agreement with the float model"
        figures.append(Figure(f"top1_{accuracy.run}", f"top-1, {RUNS[accuracy.run]}", accuracy.top1, "share", note))
    figures += build_scores.figures(report.scores, {run: _SHORT[run] for run in (FLOAT, DEFAULT)})
    figures += _noise_figures(report)
    remarks = list(report.remarks)
    if report.first_parting is not None:
        remarks.append(_parting(report))
    red = [verdict for verdict in report.verdicts if verdict.status == "red"]
    following = next((verdict.remedy for verdict in (*red, *report.verdicts) if verdict.remedy), "")
    return Report(
        kind="validate",
        title=f"{report.qdq_model} against {report.float_model}",
        passed=report.passed,
        verdicts=report.verdicts,
        figures=tuple(figures),
        tables=(*build_scores.table(report.scores, _SHORT), _outputs(report), _tensors(report), _quantizers(report)),
        failures=report.failures,
        remarks=tuple(remarks),
        left_float=tuple(LeftFloat(name, f"{tensor} carries no quantizer") for name, tensor in report.float_nodes),
        next_command=following,
    )


def _noise_figures(report: ValidationReport) -> list[Figure]:
    found = []
    for run, against, name in ((PLAIN, FLOAT, "quantized against float"), (TORCH, PLAIN, "torch against onnxruntime")):
        comparisons = report.compared(run, against)
        if not comparisons:
            continue
        worst = min((c.sqnr_db for c in comparisons), default=math.inf)
        found.append(Figure(f"sqnr_{run}_{against}", f"signal to noise, {name}", worst, "decibel"))
        flips = [c.differing_top1 for c in comparisons if c.differing_top1 is not None]
        if flips:
            found.append(Figure(f"flips_{run}_{against}", f"top-1 that differ, {name}", sum(flips), "count"))
    return found


def _parting(report: ValidationReport) -> Remark:
    found = report.first_parting
    assert found is not None
    cause = "a value next to a rounding tie" if found.rounding_tie else f"operator {found.op_type}"
    text = f"torch and onnxruntime first part at tensor {found.tensor!r}, sample {found.sample}: {cause}"
    return Remark(text, (found.node,), "validate")


def _outputs(report: ValidationReport) -> Table:
    columns = (
        Column("output", "output"),
        Column("run", "run"),
        Column("against", "against"),
        Column("differing_top1", "top-1 differ", "count"),
        Column("max_abs", "largest difference", "number"),
        Column("sqnr_db", "signal to noise", "decibel"),
    )
    rows = tuple(
        (c.output, _SHORT[c.run], _SHORT[c.against], c.differing_top1, c.max_abs, c.sqnr_db) for c in report.outputs
    )
    note = "As written: with graph optimizations off. All but the float model are the quantized model."
    return Table("outputs", "Outputs", columns, rows, note=note)


def _tensors(report: ValidationReport) -> Table:
    columns = (
        Column("tensor", "tensor"),
        Column("sqnr_db", "signal to noise", "decibel", bar=True),
        Column("position", "position", "count"),
    )
    rows = sorted(((t.tensor, t.sqnr_db, i) for i, t in enumerate(report.tensors)), key=lambda row: row[1])
    note = f"Quantized against float model in onnxruntime, on {counted(report.tensor_samples, 'sample')}; position is graph order."
    return Table("tensors", "Signal to noise per tensor, worst first", columns, tuple(rows), shown=10, note=note)


def _quantizers(report: ValidationReport) -> Table:
    columns = (
        Column("tensor", "tensor"),
        Column("grid", "grid"),
        Column("noise_db", "own noise", "decibel", bar=True),
        Column("differing_given_input", "codes differ, same input", "count"),
        Column("differing_in_network", "codes differ, network", "count"),
        Column("largest_in_network", "largest, LSB", "count"),
        Column("differing_in_integers", "codes differ, integers", "count"),
        Column("tie_rate", "at a tie", "share"),
        Column("saturated", "saturated", "share"),
    )
    rows = rows_of(report.quantizers, columns)
    reference = report.quantizers[0].reference if report.quantizers else "torch"
    note = (
        f"{reference} against onnxruntime with optimizations off, in graph order; integers against the default session."
    )
    return Table("quantizers", "Quantizers", columns, rows, shown=10, note=note)
