"""The report of ``profile``, and its table as CSV."""

from __future__ import annotations

import csv
import io
import shlex

from onnxqat.report import build_scores
from onnxqat.report.build import DATA
from onnxqat.report.model import Column, Figure, Kind, Report, Table, rows_of
from onnxqat.shell import command
from onnxqat.validation.profile import ProfileReport

_COLUMNS: tuple[tuple[str, str, Kind], ...] = (
    ("tensor", "tensor", "text"),
    ("role", "role", "text"),
    ("node", "read by", "text"),
    ("grid", "grid", "text"),
    ("alone_db", "alone, output", "decibel"),
    ("alone_cosine", "cosine", "number"),
    ("alone_mse", "mse", "number"),
    ("all_db", "all on, tensor", "decibel"),
    ("all_cosine", "cosine", "number"),
    ("all_mse", "mse", "number"),
    ("all_steps", "largest, LSB", "number"),
    ("reference", "against", "text"),
    ("alone_score", "alone, score", "number"),
)
WORST = 3
_RUNS = {"float": "float model", "quantized": "all on"}


def from_profile(report: ProfileReport) -> Report:
    """Build the report of ``profile``; the next command leaves the nodes of the costliest quantizers in float.

    Args:
        report: of :func:`onnxqat.validation.profile.profile`.
    """
    figures = (
        Figure("samples", "samples", report.samples, "count", report.data),
        Figure("quantizers", "quantizers", len(report.layers), "count"),
        Figure("output_db", "signal to noise of the output, all on", report.output_db, "decibel"),
        *build_scores.figures(() if report.score is None else (report.score,), _RUNS),
    )
    scores = () if report.score is None else (report.score,)
    shown = _COLUMNS if scores else [c for c in _COLUMNS if c[0] != "alone_score"]
    columns = tuple(Column(key, title, kind, bar=key.endswith("_db")) for key, title, kind in shown)
    rows = rows_of(report.layers, columns)
    note = (
        "Alone: the output with this quantizer on against that with none on. All on: the tensor against the float one."
    )
    worst = list(dict.fromkeys(layer.node for layer in report.layers if layer.node and layer.role != "bias"))[:WORST]
    excluded = "".join(f" --exclude {shlex.quote(node)}" for node in worst)
    return Report(
        kind="profile",
        title=f"Quantizers of {report.qdq_model}, the costliest first",
        figures=figures,
        tables=(Table("layers", "Quantizers", columns, rows, shown=20, note=note),),
        remarks=report.remarks,
        next_command=command(
            "insert-qdq",
            report.float_model,
            backend=report.backend,
            calibration=report.source or DATA,
            preprocess=report.preprocess,
        )
        + excluded,
    )


def to_csv(report: ProfileReport) -> str:
    """One line a quantizer, with a heading; numbers in full, infinite ones as ``inf``."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = [key for key, *_ in _COLUMNS if key != "alone_score" or report.score is not None]
    writer.writerow(keys)
    writer.writerows([getattr(layer, key) for key in keys] for layer in report.layers)
    return text.getvalue()
