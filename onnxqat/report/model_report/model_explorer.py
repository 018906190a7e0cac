"""Figures of the nodes in the form that Model Explorer overlays on a graph ("node data").

The form is that of ``GraphNodeData`` in its Python package: per graph, numbers by the name of a node or of one of its
outputs, with a gradient of colours. Its ONNX adapter calls a graph and a node by the names in the file.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onnxqat.graph import atomic, io
from onnxqat.report.model_report import schema

GRADIENT = (
    {"stop": 0, "bgColor": "#f3f6fb", "textColor": "#1b2029"},
    {"stop": 1, "bgColor": "#c4551a", "textColor": "#ffffff"},
)
"""Light where a value is low, orange where it is high."""

_Number = Callable[[schema.Node], "float | None"]


def node_data(report: schema.ModelReport) -> dict[str, dict[str, Any]]:
    """Return what each file holds, by its name without suffix."""
    measures: dict[str, _Number] = {
        "share of the noise": lambda node: None if node.cost is None else node.cost.share,
        "against float, dB": lambda node: None if node.float_db == "exact" else node.float_db,
        "multiply-bits": lambda node: node.multiply_bits,
        "bytes of weights": lambda node: node.weight_bytes,
        "multiply-bits per multiplication": lambda node: (
            node.multiply_bits / node.macs if node.multiply_bits and node.macs else None
        ),
    }
    return {name.replace(",", "").replace(" ", "_"): _values(report, name, of) for name, of in measures.items()}


def _values(report: schema.ModelReport, name: str, of: _Number) -> dict[str, Any]:
    found = {}
    for node in report.nodes:
        value = of(node)
        if value is not None and math.isfinite(value) and node.name:
            found[node.name] = {"value": value}
    return {report.graph: {"results": found, "name": name, "gradient": list(GRADIENT)}}


def write(report: schema.ModelReport, folder: str | os.PathLike[str]) -> list[Path]:
    """Write :func:`node_data` into `folder`, one file per measure that has values; each appears whole or not at all.

    Raises:
        ModelError: ``output-not-writable``.
    """
    atomic.make_folder(Path(folder))
    written = []
    for name, content in node_data(report).items():
        if content[report.graph]["results"]:
            written.append(Path(folder) / f"{name}.json")
            io.write_atomic(written[-1], (json.dumps(content, ensure_ascii=False) + "\n").encode("utf-8"))
    return written
