"""Scores of several runs of a model, side by side, for the reports of every command that takes ``--score``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnxqat.metrics import Scored
from onnxqat.report.model import Cell, Column, Figure, Kind, Table


def figures(scores: Sequence[Scored], runs: Mapping[str, str]) -> list[Figure]:
    """One key figure for each score and run.

    Args:
        scores: what was computed.
        runs: names of the runs to show, and what readers call them.
    """
    return [
        Figure(f"score_{s.name}_{run}", f"{s.name}, {title}", s.values[run], _kind(s), _note(s, run))
        for s in scores
        for run, title in runs.items()
        if run in s.values
    ]


def table(scores: Sequence[Scored], runs: Mapping[str, str]) -> tuple[Table, ...]:
    """A row for each score, a column for each run; nothing without scores."""
    shown = [run for run in runs if any(run in s.values for s in scores)]
    last = shown[-1] if shown else ""
    columns = (
        Column("score", "score"),
        *(Column(run, runs[run], "number") for run in shown),
        Column("drop", f"lost, {runs[last]}", "number") if last else Column("drop", "lost", "number"),
        Column("against", "measured against"),
    )
    rows: list[tuple[Cell, ...]] = [
        (s.name, *(s.values.get(run) for run in shown), s.drops.get(last), s.against) for s in scores
    ]
    return (Table("scores", "Scores, higher is better", columns, tuple(rows)),) if rows else ()


def _kind(score: Scored) -> Kind:
    return "decibel" if score.name == "sqnr" else "number"


def _note(score: Scored, run: str) -> str:
    return f"loses {score.drops[run]:.3g}" if run in score.drops else f"against {score.against}"
