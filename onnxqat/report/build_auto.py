"""The report of ``auto``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from onnxqat.autotune.auto import AutoResult
from onnxqat.report import build_scores
from onnxqat.report.build_handoff import from_handoff
from onnxqat.report.build_validation import from_validation
from onnxqat.report.model import Cell, Column, Figure, Report, Table
from onnxqat.shell import command
from onnxqat.types import Remark
from onnxqat.validation.remedies import Given

MEASURES = {
    "accuracy": "points of top-1 lost",
    "agreement": "samples in 100 with another top-1 than the float model",
    "noise": "error in percent of the signal",
    "score": "lost of the score",
}
_RUNS = {"float": "float model", "quantized": "the best"}


def from_auto(result: AutoResult, given: Given, *, longer: str = "") -> Report:
    """Build the report of ``auto``; the next command explains a model that passed, or improves one that did not.

    Args:
        result: of :func:`onnxqat.auto`.
        given: models and data, for the next command.
        longer: the command that was run, with more time.
    """
    figures = [
        Figure("drop", MEASURES[result.measure], result.drop, "number", f"{result.target_drop:g} allowed"),
        *build_scores.figures(() if result.score is None else (result.score,), _RUNS),
        Figure("samples", "held-out samples", result.samples, "count"),
        Figure("float_accuracy", "top-1 of the float model", result.float_accuracy, "share"),
        Figure("chosen", "the best of all", result.chosen),
        Figure("seconds", "seconds", result.seconds, "number"),
    ]
    proof = from_validation(result.validation)
    handed = None if result.bundle is None else from_handoff(result.bundle)
    if handed is not None:
        figures += [f for f in handed.figures if f.key in ("compiler", "integer")]
    return Report(
        kind="auto",
        title="The whole way",
        passed=result.passed,
        figures=tuple(f for f in figures if f.value is not None),
        tables=(
            _attempts(result),
            _commands(result),
            *_chosen(handed, "coverage"),
            *_chosen(proof, "outputs", "tensors"),
        ),
        failures=result.failures,
        remarks=tuple(dict.fromkeys((*result.remarks, *proof.remarks, *(handed.remarks if handed else ())))),
        files=(str(result.model), *(handed.files if handed else ())),
        left_float=handed.left_float if handed else None,
        next_command=_next_command(result, given, longer),
    )


def from_result(result: AutoResult) -> Report:
    """Build the report of ``auto`` from its result alone; the next command has placeholders for what was given."""
    proof = result.validation
    return from_auto(result, Given(proof.float_model, proof.qdq_model, target=proof.backend))


def from_several(results: Sequence[AutoResult], reports: Sequence[Report]) -> Report:
    """Build the report of several backends: a line for each, then what each one's own report says.

    Args:
        results: of :func:`onnxqat.autotune.several.auto_several`.
        reports: of :func:`from_auto`, one for each.
    """
    columns = (
        Column("backend", "backend"),
        Column("passed", "passed"),
        Column("chosen", "the best of all"),
        Column("drop", "drop", "number"),
        Column("integer", "integer nodes", "count"),
        Column("seconds", "seconds", "number"),
    )
    figures = [{figure.key: figure.value for figure in report.figures} for report in reports]
    rows = tuple(
        (r.backend, "yes" if r.passed else "no", r.chosen, r.drop, f.get("integer"), r.seconds)
        for r, f in zip(results, figures, strict=True)
    )
    named = [(Path(result.backend).stem, report) for result, report in zip(results, reports, strict=True)]
    tables = [
        dataclasses.replace(table, key=f"{name}_{table.key}", title=f"{name}: {table.title}")
        for name, report in named
        for table in report.tables
    ]
    note = f"drop: {MEASURES[results[0].measure]}, {results[0].target_drop:g} allowed"
    return Report(
        kind="auto",
        title="The whole way",
        passed=all(report.passed for report in reports),
        figures=(Figure("backends", "backends", len(results), "count"),),
        tables=(Table("backends", "Backends", columns, rows, note=note), *tables),
        failures=tuple(f"{name}: {failure}" for name, report in named for failure in report.failures),
        remarks=_all_remarks(named),
        files=tuple(file for report in reports for file in report.files),
        next_command=next((report.next_command for report in reports if not report.passed), reports[0].next_command),
    )


def _all_remarks(named: Sequence[tuple[str, Report]]) -> tuple[Remark, ...]:
    """Return the remarks of several backends: once what all say, else with the backend that it is about."""
    shared = set.intersection(*(set(report.remarks) for _, report in named))
    return tuple(
        dict.fromkeys(
            remark if remark in shared else dataclasses.replace(remark, source=f"{name}, {remark.source}".rstrip(", "))
            for name, report in named
            for remark in report.remarks
        )
    )


def _next_command(result: AutoResult, given: Given, longer: str) -> str:
    if result.passed:
        return command("explain", str(result.model))
    if result.drop > result.target_drop:
        return longer if longer and result.cut_short else given.look()
    red = {verdict.name for verdict in result.validation.verdicts if verdict.status == "red"}
    if "parity" in red:
        return given.place(backend=given.target, kind="exact")
    return given.look() if red else command("lint", str(result.model), backend=given.target)


def _attempts(result: AutoResult) -> Table:
    columns = (Column("attempt", "attempt"), Column("drop", "drop", "number"), Column("seconds", "seconds", "number"))
    rows: tuple[tuple[Cell, ...], ...] = tuple((a.name, a.drop, a.seconds) for a in result.attempts)
    return Table("attempts", "What was tried", columns, rows, note=f"drop: {MEASURES[result.measure]}")


def _commands(result: AutoResult) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple((line,) for line in result.commands)
    trained = any("finetune" in line for line in result.commands)
    note = "training chose among its scores on the held-out samples, which the command does not see" if trained else ""
    return Table("commands", "The same file again", (Column("command", "command"),), rows, note=note)


def _chosen(report: Report | None, *keys: str) -> tuple[Table, ...]:
    """The tables of another report that matter here; its own command shows the rest."""
    return () if report is None else tuple(table for table in report.tables if table.key in keys)
