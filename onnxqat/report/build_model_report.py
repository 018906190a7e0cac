"""The terminal's view of a model report: key figures, verdicts, and the tables of what matters most."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from onnxqat.counts import counted
from onnxqat.printing import printable
from onnxqat.report.model import Cell, Column, Figure, LeftFloat, Report, Table, shown
from onnxqat.report.model_report import schema
from onnxqat.types import Remark
from onnxqat.verdict import Verdict

_LINES = 10


def from_model_report(content: schema.ModelReport, *, files: Sequence[str] = ()) -> Report:
    """Build the report that the terminal shows.

    Args:
        content: the data model.
        files: what was written.
    """
    verdicts = tuple(Verdict(j.name, j.status, j.reason, j.remedy) for j in content.judgements)
    left = tuple(LeftFloat(node.name, node.reason) for node in content.nodes if node.reason)
    return Report(
        kind="report",
        title=f"Report on {content.title}",
        figures=tuple(_figures(content)),
        tables=tuple(table for table in (_variants(content), _costly(content), _noisy(content)) if table.rows),
        remarks=tuple(Remark(text, source="report") for text in content.remarks),
        files=tuple(files),
        left_float=left if content.quantizers else None,
        verdicts=verdicts,
        details={"joined": content.sources},
    )


def summary(content: schema.ModelReport) -> str:
    """Return the report in at most ten lines."""
    lines = [f"Report on {printable(content.title)}"]
    lines += [f"  {figure.label}: {shown(figure.value, figure.kind)}" for figure in _figures(content)]
    lines += [f"  {j.name} {j.status.upper()}: {printable(j.reason)}" for j in content.judgements]
    rest = len(lines) - _LINES
    return "\n".join(lines if rest <= 0 else [*lines[: _LINES - 1], f"  ... and {rest + 1} more"])


def _figures(content: schema.ModelReport) -> list[Figure]:
    """Return the figures at the top: numbers of quantizers, bytes, multiply-bits, layers in float, noise, latency."""
    own = content.variants[0]
    roles = Counter(quantizer.role for quantizer in content.quantizers)
    original = next((variant for variant in content.variants if variant.form == "float"), None)
    less = (
        f"{own.weight_bytes / original.weight_bytes:.0%} of the float model"
        if original and original.weight_bytes
        else ""
    )
    parts = ", ".join(
        f"{count} of {role}s" if role != "bias" else f"{count} of biases" for role, count in roles.items()
    )
    found = [
        Figure("quantizers", "quantizers", len(content.quantizers), "count", parts),
        Figure("weight_bytes", "bytes of weights", own.weight_bytes, "count", less),
        Figure("multiply_bits", "multiply-bits a sample", own.multiply_bits, "count"),
        Figure("float_layers", "layers in float", own.float_layers, "count"),
    ]
    if own.output_db is not None:
        note = f"against the float model, {counted(content.samples, 'sample')}"
        found.append(Figure("output_db", "signal to noise of the output", _ratio(own.output_db), "decibel", note))
    if own.milliseconds is not None:
        found.append(
            Figure("milliseconds", "milliseconds a batch", own.milliseconds, "number", "onnxruntime, one thread")
        )
    return found


def _ratio(value: schema.Decibel) -> float | None:
    return math.inf if value == "exact" else value


def _variants(content: schema.ModelReport) -> Table:
    columns = (
        Column("name", "model"),
        Column("form", "form"),
        Column("weight_bytes", "bytes of weights", "count"),
        Column("multiply_bits", "multiply-bits", "count"),
        Column("output_db", "output", "decibel"),
        Column("milliseconds", "ms a batch", "number"),
    )
    rows: list[tuple[Cell, ...]] = [
        (v.name, v.form, v.weight_bytes, v.multiply_bits, _ratio(v.output_db), v.milliseconds) for v in content.variants
    ]
    return Table("variants", "Side by side", columns, tuple(rows) if len(rows) > 1 else ())


def _costly(content: schema.ModelReport) -> Table:
    columns = (
        Column("node", "node"),
        Column("op", "operator"),
        Column("share", "share of the noise", "share", bar=True),
        Column("alone_db", "alone, output", "decibel"),
    )
    known = [(n, n.cost) for n in content.nodes if n.cost is not None and n.cost.share is not None]
    known.sort(key=lambda entry: -(entry[1].share or 0.0))
    rows: list[tuple[Cell, ...]] = [(n.name, n.op, cost.share, _ratio(cost.alone_db)) for n, cost in known]
    return Table("costly", "What costs most", columns, tuple(rows), shown=10)


def _noisy(content: schema.ModelReport) -> Table:
    columns = (
        Column("tensor", "tensor"),
        Column("role", "role"),
        Column("grid", "grid"),
        Column("own_db", "own rounding", "decibel", bar=True),
        Column("saturated", "saturated", "share"),
    )
    measured = [(q, q.now.values) for q in content.quantizers if q.now.values is not None]
    found = [(q, v, _ratio(v.own_db)) for q, v in measured]
    found.sort(key=lambda entry: math.inf if entry[2] is None else entry[2])
    rows: list[tuple[Cell, ...]] = [(q.tensor, q.role, q.grid, db, v.saturated) for q, v, db in found]
    return Table("quantizers", "Quantizers, the noisiest by their own rounding first", columns, tuple(rows), shown=10)
