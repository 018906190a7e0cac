"""Attempts of a search as points of cost against quality."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from onnxqat.errors import QatError
from onnxqat.report.model_report import schema
from onnxqat.report.model_report.results_read import Result, number, rows, text

Better = Literal["more", "less"]


def fronts(results: Sequence[Result], cost_of: Callable[[Path], float]) -> list[schema.Front]:
    """Build the plots of all searches among `results`.

    Args:
        results: those of other kinds are passed over.
        cost_of: multiply-bits of a file of a search; raises :class:`QatError` where it cannot be read.
    """
    found = [_front(result, cost_of) for result in results if result.kind in ("auto", "mixed-precision", "search")]
    return [front for front in found if front is not None and front.points]


def _front(result: Result, cost_of: Callable[[Path], float]) -> schema.Front | None:
    if result.kind == "mixed-precision":
        label = "multiply-bits or bytes of weights"
        points = [
            schema.FrontPoint(name=f"point {i}", x=x, y=y, chosen=bool(row.get("chosen")))
            for i, row in enumerate(rows(result, "front"), start=1)
            if (x := number(row, "cost")) is not None and (y := number(row, "predicted_db")) is not None
        ]
        return _marked("mixed-precision: widths", label, "signal to noise, predicted, dB", "more", points)
    if result.kind == "search":
        return _search(result, cost_of)
    chosen = text(result.content.get("figures") or {}, "chosen")
    points = [
        schema.FrontPoint(name=text(row, "attempt"), x=x, y=y, chosen=text(row, "attempt") == chosen)
        for row in rows(result, "attempts")
        if (x := number(row, "seconds")) is not None and (y := number(row, "drop")) is not None
    ]
    return _marked("auto: attempts", "seconds", "drop", "less", points)


def _search(result: Result, cost_of: Callable[[Path], float]) -> schema.Front | None:
    """Plot the record of a search: by multiply-bits where the files are still there, else by time."""
    entries: list[dict[str, Any]] = [entry for entry in result.content["attempts"] if isinstance(entry, dict)]
    costs = {}
    for i, entry in enumerate(entries):
        name = Path(text(entry, "file")).name  # a file beside the record, wherever its name points
        try:
            costs[i] = cost_of(result.folder / name) if name and (result.folder / name).is_file() else None
        except QatError:
            costs[i] = None
    known = sum(cost is not None for cost in costs.values())
    by_cost = known > len(entries) / 2
    points = []
    for i, entry in enumerate(entries):
        x = costs[i] if by_cost else number(entry, "seconds")
        y = number(entry, "drop")
        if x is not None and y is not None:
            points.append(schema.FrontPoint(name=text(entry, "name"), x=x, y=y))
    return _marked("auto: attempts", "multiply-bits" if by_cost else "seconds", "drop", "less", points)


def _marked(
    title: str, x_label: str, y_label: str, better: Better, points: list[schema.FrontPoint]
) -> schema.Front | None:
    """Mark the points that no other beats in both."""
    sign = 1.0 if better == "less" else -1.0
    best = float("inf")
    for point in sorted(points, key=lambda p: (p.x, sign * p.y)):
        point.front = sign * point.y < best
        best = min(best, sign * point.y)
    if not points:
        return None
    return schema.Front(title=title, x_label=x_label, y_label=y_label, y_better=better, points=points)
