"""The report of ``profile``, and its table as CSV."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Sequence
from typing import Any

from onnxqat.report import build_scores
from onnxqat.report.build import DATA
from onnxqat.report.model import Column, Figure, Kind, Report, Table, rows_of, shown
from onnxqat.shell import command
from onnxqat.validation.profile_result import Cost, LayerProfile, ProfileReport, TensorProfile

Columns = Sequence[tuple[str, str, Kind]]
_COST: Columns = (
    ("alone_db", "alone, output", "decibel"),
    ("alone_cosine", "cosine", "number"),
    ("alone_mse", "mse", "number"),
    ("alone_score", "alone, score", "number"),
    ("off_db", "all others, output", "decibel"),
    ("off_cosine", "cosine", "number"),
    ("off_mse", "mse", "number"),
    ("off_score", "all others, score", "number"),
)
_TENSORS: Columns = (
    ("tensor", "tensor", "text"),
    ("role", "role", "text"),
    ("node", "read by", "text"),
    ("grid", "grid", "text"),
    *_COST,
    ("all_db", "all on, tensor", "decibel"),
    ("all_cosine", "cosine", "number"),
    ("all_mse", "mse", "number"),
    ("all_steps", "largest, LSB", "number"),
    ("reference", "against", "text"),
)
_LAYERS: Columns = (
    ("node", "layer", "text"),
    ("op_type", "operator", "text"),
    *_COST,
    ("all_db", "all on, tensor", "decibel"),
    ("all_steps", "largest, LSB", "number"),
    ("tensors", "quantizers", "text"),
)
_CURVE: Columns = (
    ("count", "in float", "count"),
    ("name", "the last of them", "text"),
    ("output_db", "output", "decibel"),
    ("cosine", "cosine", "number"),
    ("mse", "mse", "number"),
    ("score", "score", "number"),
)
_RUNS = {"float": "float model", "quantized": "all on"}
_NOTE = (
    "Alone: the output with only these on against that with none on. All others: with all but these on."
    " All on: the tensor against the float one."
)


def from_profile(report: ProfileReport) -> Report:
    """Build the report of ``profile``; the next command leaves the costliest nodes in float.

    Args:
        report: of :func:`onnxqat.validation.profile.profile`.
    """
    following = command(
        "insert-qdq",
        report.float_model,
        backend=report.backend,
        calibration=report.source or DATA,
        preprocess=report.preprocess,
        bits=report.widths[0],
        first_last_bits=report.widths[1],
    )
    tables = [
        _table("tensors", "Quantizers", _TENSORS, report.tensors, _NOTE),
        _table("layers", "Layers, all that a node reads together", _LAYERS, report.layers, _layers_note(report)),
    ]
    tables = tables if report.by == "tensor" else tables[::-1]
    if report.curve:
        note = "All quantizers on but those of the first ones of the table above, one more with each row."
        tables.append(_table("curve", "Most sensitive first in float", _CURVE, report.curve, note))
    return Report(
        kind="profile",
        title=f"Quantizers of {report.qdq_model}, the costliest first",
        figures=_figures(report),
        tables=tuple(tables),
        remarks=report.remarks,
        next_command=following + _options("exclude", report.exclude),
        details=_details(report),
    )


def _figures(report: ProfileReport) -> tuple[Figure, ...]:
    scores = () if report.score is None else (report.score,)
    lists = [
        Figure(f"{key}_list", label, _options(key, found).strip(), "text", note)
        for key, label, found, note in (
            ("exclude", "most costly, in float", report.exclude, _reached(report)),
            ("bits_of", "the same with 16 bits", report.bits_of, ""),
        )
        if found
    ]
    return (
        Figure("samples", "samples", report.samples, "count", report.data),
        Figure("quantizers", "quantizers", len(report.tensors), "count"),
        Figure("layers", "layers", len(report.layers), "count"),
        Figure("output_db", "signal to noise of the output, all on", report.output_db, "decibel"),
        *build_scores.figures(scores, _RUNS),
        *lists,
    )


def _reached(report: ProfileReport) -> str:
    """The effect of the list of nodes, in a few words."""
    if not report.curve:
        return "the first ones; --ways cumulative says how many it takes"
    first = next((point for point in report.curve if point.output_db >= report.level_db), report.curve[-1])
    return (
        f"{first.count} of {len(report.curve) - 1} {report.by}s: the output reaches {shown(first.output_db, 'decibel')}"
    )


def _layers_note(report: ProfileReport) -> str:
    return "Alone: the noise of its tensors, added up; --by layer measures it." if report.by == "tensor" else _NOTE


def _options(key: str, values: Sequence[str]) -> str:
    return "".join(f" --{key.replace('_', '-')} {shlex.quote(value)}" for value in values)


def _table(key: str, title: str, columns: Columns, items: Sequence[Any], note: str) -> Table:
    """The rows of `items` without columns that none of them has a value in."""
    cells = _filled(columns, items)
    found = tuple(Column(name, text, kind, bar=name.endswith("_db")) for name, text, kind in cells)
    return Table(key, title, found, rows_of(items, found), shown=20, note=note)


def _filled(columns: Columns, items: Sequence[Any]) -> Columns:
    optional = {name for name, *_ in _COST} | {"score"}
    return [c for c in columns if c[0] not in optional or any(getattr(item, c[0]) is not None for item in items)]


def _details(report: ProfileReport) -> dict[str, object]:
    """Lists and statistics for programs and for drawings."""
    return {
        "by": report.by,
        "ways": report.ways,
        "sort": report.sort,
        "level_db": report.level_db,
        "exclude": report.exclude,
        "bits_of": report.bits_of,
        "statistics": [
            {"tensor": row.tensor, "role": row.role, **({} if row.statistics is None else vars(row.statistics))}
            for row in report.tensors
        ],
    }


def to_csv(report: ProfileReport) -> str:
    """One line a quantizer, or a layer where these were measured, with a heading; numbers in full, infinite ones as ``inf``."""
    rows: Sequence[TensorProfile | LayerProfile] = report.tensors if report.by == "tensor" else report.layers
    columns = _filled(_TENSORS if report.by == "tensor" else _LAYERS, rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = [key for key, *_ in columns]
    writer.writerow(keys)
    writer.writerows([_cell(row, key) for key in keys] for row in rows)
    return text.getvalue()


def _cell(row: Cost, key: str) -> object:
    value = getattr(row, key)
    return " ".join(value) if isinstance(value, tuple) else value
