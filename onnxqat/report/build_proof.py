"""The report of proofs about widths, by itself and as a part of that of ``validate``."""

from __future__ import annotations

import dataclasses
import os

from onnxqat.report.model import Cell, Column, Figure, Report, Table
from onnxqat.validation.layer_proofs import FunctionProof, SumProof
from onnxqat.validation.prove import LayerProof, Proof

_LAYERS = (
    Column("node", "node"),
    Column("products", "products", "count"),
    Column("bits", "bits, any input", "count"),
    Column("channel", "channel", "count"),
    Column("bits_in_range", "in the data's ranges", "count"),
    Column("bits_on_data", "on the data", "count"),
    Column("beyond_16", "sums beyond 16 bits", "count"),
    Column("shifts", "shifts"),
)
_FUNCTIONS = (
    Column("node", "node"),
    Column("function", "function"),
    Column("bits", "bits", "count"),
    Column("stage", "stage"),
    Column("shifts", "shifts"),
)
_SATURATION = (
    Column("tensor", "tensor"),
    Column("values", "values", "count"),
    Column("at_ends", "at an end of the grid", "count"),
)


def from_proof(proof: Proof) -> Report:
    """Build the report of :func:`onnxqat.prove`, layers that need the widest accumulator first."""
    figures = [Figure("bits", "accumulator that holds any sum", _bits(proof))]
    if proof.samples:
        measured = [layer.measured for layer in proof.layers if layer.measured is not None]
        figures += [
            Figure("samples", "samples", proof.samples, "count"),
            Figure(
                "bits_on_data", "bits that the largest sum needs", max((m.bits for m in measured), default=0), "count"
            ),
        ]
    if proof.unproved:
        figures.append(Figure("unproved", "layers without a proof", len(proof.unproved), "count"))
    return Report(
        kind="prove",
        title=f"Widths of {proof.file.name}",
        passed=not proof.failures,
        figures=tuple(figures),
        tables=_tables(proof),
        failures=proof.failures,
        remarks=proof.remarks,
    )


def joined(report: Report, proof: Proof, path: os.PathLike[str]) -> Report:
    """`report` of ``validate`` with the tables and failures of a proof that was written to `path`."""
    failures = (*report.failures, *proof.failures)
    known = {remark.message for remark in report.remarks}
    return dataclasses.replace(
        report,
        passed=bool(report.passed) and not proof.failures,
        figures=(*report.figures, Figure("accumulator_bits", "accumulator that holds any sum", _bits(proof))),
        tables=(*report.tables, *_tables(proof)),
        failures=failures,
        remarks=(*report.remarks, *(remark for remark in proof.remarks if remark.message not in known)),
        files=(*report.files, os.fspath(path)),
    )


def _bits(proof: Proof) -> str:
    if not proof.layers:
        return "no layer on integer grids"
    return "not known: a length is open" if proof.bits is None else f"{proof.bits} bits"


def _tables(proof: Proof) -> tuple[Table, ...]:
    layers = sorted(proof.layers, key=lambda layer: -(layer.proof.bits or 64))
    rows = [_layer(layer) for layer in (*layers, *(LayerProof(pool) for pool in proof.pools))]
    note = (
        "Bits of the smallest accumulator: for any input, from the codes of the weights alone; for inputs whose channels "
        "stay in the ranges of the data; of the largest sum on the data. Shifts stand behind a multiplier of 31 bits."
    )
    found = [Table("widths", "Widths of sums, widest first", _LAYERS, tuple(rows), shown=10, note=note)]
    if proof.functions:
        calls = tuple(_function(f) for f in proof.functions)
        found.append(Table("stages", "Widest stages of integer functions", _FUNCTIONS, calls, shown=10))
    ends = sorted(((s.tensor, s.values, s.at_ends) for s in proof.saturation), key=lambda row: -row[2])
    if ends:
        found.append(Table("ends", "Values at the ends of grids", _SATURATION, tuple(ends), shown=5))
    return tuple(found)


def _layer(layer: LayerProof) -> tuple[Cell, ...]:
    proof, measured = layer.proof, layer.measured
    data = (None, None, None) if measured is None else (measured.bits_in_range, measured.bits, measured.beyond[16])
    return (proof.node, proof.products, proof.bits, proof.channel, *data, _shifts(proof))


def _shifts(proof: SumProof) -> str:
    given = proof.power_of_two_shifts or proof.shifts
    return "" if given is None else _span(given)


def _span(ends: tuple[int, int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _function(proof: FunctionProof) -> tuple[Cell, ...]:
    widest = max(proof.stages, key=lambda stage: stage.bits)
    shifts = ", ".join(f"{name} {_span(ends)}" for name, ends in proof.shifts.items())
    return proof.node, proof.function, proof.bits, widest.name, shifts
