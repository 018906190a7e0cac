"""The report of ``inspect``."""

from __future__ import annotations

from onnxqat.linting.inspect import Inspection, Port
from onnxqat.report import following
from onnxqat.report.model import Column, Figure, Report, Table
from onnxqat.shell import command
from onnxqat.types import Remark


def from_inspect(found: Inspection) -> Report:
    """Build the report of ``inspect``.

    Args:
        found: of :func:`onnxqat.inspect`.
    """
    figures = [
        Figure("form", "form", found.form),
        Figure("producer", "producer", found.producer or "not stated"),
        Figure("ir_version", "IR version", found.ir_version, "count"),
        Figure("opsets", "opsets", ", ".join(f"{domain} {version}" for domain, version in found.opsets.items())),
        Figure("elements", "elements of constants", sum(c.elements for c in found.constants), "count"),
        Figure("bytes", "bytes of constants", sum(c.bytes for c in found.constants), "count"),
        Figure("macs", "multiplications with additions a sample", found.macs, "count", "of known shapes"),
        Figure("scopes", "inner graphs and functions", found.scopes, "count"),
    ]
    tables = (_ports(found), _operators(found), _constants(found), _grids(found), _metadata(found))
    return Report(
        kind="inspect",
        title=found.model,
        figures=tuple(figures),
        tables=tuple(table for table in tables if table.rows),
        remarks=tuple(Remark(text, source="inspect") for text in found.defects),
        next_command=_next_command(found),
    )


def _next_command(found: Inspection) -> str:
    if found.form == "float":
        return following.calibrate(found.model, found.metadata)
    return command("explain", found.model) if found.form.startswith("QDQ") else ""


def _ports(found: Inspection) -> Table:
    columns = (Column("port", ""), Column("name", "name"), Column("dtype", "type"), Column("shape", "shape"))
    both = [("input", p) for p in found.inputs] + [("output", p) for p in found.outputs]
    rows = tuple((kind, port.name, port.dtype, _shape(port)) for kind, port in both)
    return Table("ports", "Inputs and outputs", columns, rows)


def _shape(port: Port) -> str:
    return "of unknown rank" if port.shape is None else f"[{', '.join(map(str, port.shape))}]"


def _operators(found: Inspection) -> Table:
    columns = (
        Column("operator", "operator"),
        Column("nodes", "nodes", "count"),
        Column("quantized", "with quantized input", "count"),
        Column("macs", "multiplications with additions", "count"),
    )
    rows = tuple((o.op_type, o.nodes, o.quantized, o.macs) for o in found.operators)
    return Table("operators", "Operators", columns, rows, shown=40)


def _constants(found: Inspection) -> Table:
    columns = (
        Column("dtype", "type"),
        Column("tensors", "tensors", "count"),
        Column("elements", "elements", "count"),
        Column("bytes", "bytes", "count"),
    )
    rows = tuple((c.dtype, c.tensors, c.elements, c.bytes) for c in found.constants)
    return Table("constants", "Constants", columns, rows)


def _grids(found: Inspection) -> Table:
    columns = (
        Column("role", "role"),
        Column("grid", "grid"),
        Column("granularity", "one scale a"),
        Column("quantizers", "quantizers", "count"),
    )
    rows = tuple((g.role, g.grid, g.granularity, g.quantizers) for g in found.grids)
    return Table("grids", "Quantizers", columns, rows)


def _metadata(found: Inspection) -> Table:
    rows = tuple(sorted(found.metadata.items()))
    return Table("metadata", "Metadata", (Column("key", "key"), Column("value", "value")), rows)
