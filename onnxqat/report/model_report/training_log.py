"""Curves of a training run, from the lines of its ``log.jsonl``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from onnxqat.report.model_report import schema
from onnxqat.report.model_report.meters import significant
from onnxqat.report.model_report.results_read import number

POINTS = 1000
"""Points of a line: more are not told apart at the width of a page."""
SCALES = 24
"""Scales that are drawn, those that move most: more lines hide each other."""


def training(lines: Iterable[Mapping[str, Any]]) -> schema.Training:
    """Build the curves; a value that is missing or not finite is a gap."""
    steps = [line for line in lines if line.get("event") == "step"]
    epochs = [line for line in lines if line.get("event") == "epoch"]
    by_step, by_epoch = [float(line["step"]) for line in steps], [float(line["step"]) for line in epochs]

    def curve(name: str, at: list[float], found: list[float | None]) -> list[schema.Curve]:
        return [thinned(name, at, found)] if any(value is not None for value in found) else []

    groups = dict.fromkeys(group for line in steps for group in _inner(line, "rates"))
    rates = {group: [number(_inner(line, "rates"), group) for line in steps] for group in groups}
    return schema.Training(
        loss=[
            *curve("loss", by_step, [number(line, "loss") for line in steps]),
            *curve("mean of the epoch", by_epoch, [number(line, "loss") for line in epochs]),
        ],
        score=curve("score", by_epoch, [number(line, "score") for line in epochs]),
        rates=[thinned(group, by_step, found) for group, found in rates.items()],
        gradient_norm=curve("norm of the gradients", by_step, [number(line, "gradient_norm") for line in steps]),
        scales=_scales(by_epoch, [_inner(line, "scales") for line in epochs]),
        oscillation=curve("codes that turned back", by_epoch, [number(line, "oscillating") for line in epochs]),
    )


def _inner(line: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = line.get(key)
    return found if isinstance(found, Mapping) else {}


def thinned(name: str, x: list[float], y: list[float | None]) -> schema.Curve:
    """Return a line of :data:`POINTS` points at most, the last one among them."""
    step = max(1, -(-len(x) // POINTS))
    kept = sorted({*range(0, len(x), step), len(x) - 1}) if x else []
    values = [None if (value := y[i]) is None else significant(value) for i in kept]
    return schema.Curve(name=name, x=[x[i] for i in kept], y=values)


def _scales(at: list[float], lines: list[Mapping[str, Any]]) -> list[schema.Curve]:
    """Return how the scales move against the first epoch, for those that move most."""
    found = []
    for tensor in dict.fromkeys(name for line in lines for name in line):
        values = [number(line, tensor) for line in lines]
        first = next((value for value in values if value), None)
        if first is None:
            continue
        relative = [None if value is None else value / first for value in values]
        moved = max(abs(value - 1.0) for value in relative if value is not None)
        found.append((moved, thinned(tensor, at, relative)))
    found.sort(key=lambda entry: -entry[0])
    return [curve for _, curve in found[:SCALES]]
