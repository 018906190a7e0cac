"""The report of ``mixed-precision``, and its Pareto front as CSV."""

from __future__ import annotations

import csv
import io
import math
import os

from onnxqat.bit_allocation.costs import UNITS
from onnxqat.bit_allocation.result import MixedPrecision
from onnxqat.counts import counted
from onnxqat.report import build_scores
from onnxqat.report.model import Column, Figure, Report, Table, rows_of

_LAYERS = (
    Column("node", "layer"),
    Column("op_type", "operator"),
    Column("weights", "weights", "count"),
    Column("weight_bits", "bits of weights", "count"),
    Column("activation_bits", "of activations", "count"),
    Column("weight_bytes", "bytes", "number"),
    Column("multiply_bits", "multiply-bits", "count"),
)
_FRONT = (
    Column("cost", "cost", "number"),
    Column("share", "share", "share"),
    Column("predicted_db", "predicted", "decibel", bar=True),
    Column("chosen", "chosen"),
)
_RUNS = {"float": "float model", "quantized": "the file"}


def from_mixed_precision(found: MixedPrecision, *, following: str = "") -> Report:
    """Build the report of ``mixed-precision``.

    Args:
        found: of :func:`onnxqat.bit_allocation.mixed_precision.mixed_precision`.
        following: the next command.
    """
    unit, of_float = UNITS[found.cost], found.cost in ("latency", "float-multiplications")
    whole = "of the float model" if of_float else "of 8 bits everywhere"
    timed = (
        () if found.latency_ms is None else (Figure("latency_ms", "ms a sample, the file", found.latency_ms, "number"),)
    )
    limit = () if found.budget is None else (Figure("budget", f"budget, {unit}", found.budget, "number"),)
    scores = () if found.score is None else (found.score,)
    on = f"against the float model, on {counted(found.samples, 'sample')}"
    path = os.fspath(found.model) if isinstance(found.model, (str, os.PathLike)) else ""
    return Report(
        kind="mixed-precision",
        title="Widths layer by layer",
        passed=found.reached,
        figures=(
            *limit,
            Figure("total", unit, found.total, "number"),
            *timed,
            Figure("share", whole, found.total / found.whole if found.whole else math.nan, "share"),
            Figure("integer_share", "multiplications on integers", found.integer_share, "share"),
            Figure(
                "predicted_db", "signal to noise, predicted", found.predicted_db, "decibel", f"noise {found.method}"
            ),
            Figure("measured_db", "signal to noise of the file", found.measured_db, "decibel", on),
            *build_scores.figures(scores, _RUNS),
            Figure("again", "the same file again", found.following),
        ),
        tables=(
            Table("layers", "Widths", _LAYERS, rows_of(found.layers, _LAYERS), shown=100),
            Table("front", f"Pareto front, {unit} against noise", _FRONT, rows_of(found.front, _FRONT)),
        ),
        failures=() if found.reached else ("no choice of widths keeps the limit; the best one was written",),
        remarks=found.remarks,
        files=(path,) if path else (),
        next_command=following,
        details={
            "options": [{"node": layer.node, "options": layer.options} for layer in found.layers],
            "front": [{"cost": point.cost, "bits": point.bits} for point in found.front],
            "node_bits": found.node_bits,
            "exclude": found.exclude,
        },
    )


def to_csv(found: MixedPrecision) -> str:
    """One line a point of the front, the cheapest first, with the width of each layer's weights in a column of its name."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = [column.key for column in _FRONT]
    writer.writerow([*keys, *(layer.node for layer in found.layers)])
    writer.writerows([*(getattr(point, key) for key in keys), *point.bits] for point in found.front)
    return text.getvalue()
