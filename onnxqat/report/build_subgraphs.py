"""The reports of ``cut`` and ``stitch``."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from onnxqat.data import inputs
from onnxqat.graph import io, qdq, walk
from onnxqat.report import following
from onnxqat.report.model import Column, Figure, Report, Table
from onnxqat.shell import command


def from_cut(written: Path, *, whole: Path) -> Report:
    """Build the report of ``cut``.

    Args:
        written: the part.
        whole: the model that it was cut from.
    """
    part, nodes = io.load(written), sum(1 for _ in walk.nodes(io.load(whole)))
    quantized = qdq.is_quantized(part)
    return Report(
        kind="cut",
        title=f"A part of {whole}",
        figures=(Figure("nodes", "nodes", sum(1 for _ in walk.nodes(part)), "count", f"of {nodes:,}"),),
        tables=(_boundary_table(part),),
        files=(str(written),),
        next_command=command("explain", str(written))
        if quantized
        else following.calibrate(str(written), part.metadata_props),
    )


def from_stitch(written: Path, *, part: Path, whole: Path) -> Report:
    """Build the report of ``stitch``.

    Args:
        written: the whole with the part.
        part: the part that was put in.
        whole: the model that it was put into.
    """
    model = io.load(written)
    figures = (
        Figure("nodes", "nodes", sum(1 for _ in walk.nodes(model)), "count"),
        Figure("quantizers", "quantizers", len(list(qdq.quantizers(model, every=True))), "count"),
    )
    return Report(
        kind="stitch",
        title=f"{part} in {whole}",
        figures=figures,
        files=(str(written),),
        next_command=following.validate(written, str(written), original=str(whole)),
    )


def _boundary_table(part: ir.Model) -> Table:
    columns = (Column("tensor", "tensor"), Column("role", "role"), Column("type", "type"))
    starts = [(info.name, "input", str(info).partition(" ")[2].strip("()")) for info in inputs.of_graph(part.graph)]
    ends = [(str(v.name), "output", f"{v.dtype}{v.shape}") for v in part.graph.outputs]
    return Table("ends", "Where it starts and ends", columns, (*starts, *ends))
