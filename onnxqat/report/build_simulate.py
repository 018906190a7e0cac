"""The report of ``simulate``."""

from __future__ import annotations

from onnxqat.report.model import Column, Figure, Report, Table
from onnxqat.validation.simulate import SimulationReport

_OUTPUTS = (
    Column("output", "output"),
    Column("values", "values", "count"),
    Column("differing", "not equal", "count"),
    Column("default_db", "against the default session", "decibel"),
    Column("written_db", "against the file as written", "decibel"),
)
_LAYERS = (
    Column("tensor", "tensor"),
    Column("kernel", "kernel"),
    Column("largest", "largest sum", "count"),
    Column("bits", "bits", "count"),
)


def from_simulate(report: SimulationReport) -> Report:
    """Build the report of ``simulate``, layers with the largest sums first.

    Args:
        report: of :func:`onnxqat.simulate`.
    """
    rounding = f", rounds {report.rounding}" if report.rounding else ""
    figures = (
        Figure("samples", "samples", report.samples, "count"),
        Figure("arithmetic", "arithmetic", report.arithmetic + rounding),
        Figure("accumulator", "accumulator", f"{report.accumulator.bits} bits, {report.accumulator.overflow}"),
        Figure("bits", "bits that the largest sum needs", max((s.bits for s in report.layers), default=0), "count"),
        Figure("kernels", "on codes", ", ".join(f"{count} {kind}" for kind, count in report.kernels.items())),
        Figure("floats", "in float", ", ".join(report.floats) or "no operator"),
        Figure("differing", "values unlike the default session", sum(o.differing for o in report.outputs), "count"),
    )
    outputs = tuple((o.output, o.values, o.differing, o.default_db, o.written_db) for o in report.outputs)
    widest = sorted(report.layers, key=lambda layer: -layer.largest)
    return Report(
        kind="simulate",
        title=f"{report.model} in integers",
        figures=figures,
        tables=(
            Table("outputs", "Outputs beside onnxruntime", _OUTPUTS, outputs),
            Table("layers", "Sums of layers", _LAYERS, tuple((s.tensor, s.kernel, s.largest, s.bits) for s in widest)),
        ),
        remarks=report.remarks,
        files=report.files,
    )
