"""The report of ``export``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from onnxqat.data import inputs
from onnxqat.graph import walk
from onnxqat.report import following
from onnxqat.report.model import Column, Figure, Report, Table

if TYPE_CHECKING:
    from onnxqat.from_torch.export import Exported


def from_export(exported: Exported, *, source: str, written: Path) -> Report:
    """Build the report of ``export``.

    Args:
        exported: of :func:`onnxqat.from_torch.export.run`.
        source: name of the module.
        written: the file.
    """
    model = exported.model
    counts = Counter(f"{n.domain}.{n.op_type}" if n.domain else n.op_type for n in walk.nodes(model))
    figures = (
        Figure("exporter", "torch's exporter", exported.exporter),
        Figure("opset", "opset", model.opset_imports.get("", 0), "count"),
        Figure("nodes", "nodes", sum(counts.values()), "count"),
        Figure("inputs", "inputs", ", ".join(map(str, inputs.of_graph(model.graph)))),
        Figure("outputs", "outputs", ", ".join(str(v.name) for v in model.graph.outputs)),
    )
    columns = (Column("operator", "operator"), Column("nodes", "nodes", "count"))
    table = Table("operators", "Operators", columns, tuple(counts.most_common()))
    return Report(
        kind="export",
        title=f"{source} as ONNX",
        figures=figures,
        tables=(table,),
        remarks=exported.remarks,
        files=(str(written),),
        next_command=following.calibrate(str(written), model.metadata_props),
    )
