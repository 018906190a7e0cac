"""The report of ``reconstruct``."""

from __future__ import annotations

import os
from typing import Any

from onnxqat.report.model import Column, Figure, Report, Table


def from_reconstruct(result: Any, *, following: str = "") -> Report:
    """Build the report of ``reconstruct``.

    Args:
        result: of ``onnxqat.training.reconstruction.reconstruct.reconstruct``.
        following: the next command.
    """
    kept = sum(block.kept for block in result.blocks)
    columns = (
        Column("tensor", "end of block"),
        Column("layers", "layers", "count"),
        Column("before", "error before", "number"),
        Column("after", "error after", "number"),
        Column("kept", "kept"),
    )
    rows = tuple((b.tensor, len(b.layers), b.before, b.after, b.kept) for b in result.blocks)
    output = os.fspath(result.model) if isinstance(result.model, (str, os.PathLike)) else None
    return Report(
        kind="reconstruct",
        title="Reconstructed",
        figures=(
            Figure("blocks", "blocks", len(rows), "count"),
            Figure("kept", "of them better than nearest rounding", kept, "count"),
            Figure("samples", "samples", result.samples, "count"),
            Figure("seconds", "seconds", result.seconds, "number"),
        ),
        tables=(Table("blocks", "Mean squared error at the end of each block", columns, rows, shown=100),),
        remarks=result.remarks,
        files=(output,) if output else (),
        next_command=following,
    )
