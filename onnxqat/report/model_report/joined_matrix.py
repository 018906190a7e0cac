"""The matrix of a hand-off to several targets (``matrix.json``), put beside the nodes that it is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from onnxqat.deployment.base_compiler import ABSORBED
from onnxqat.report.model_report import schema
from onnxqat.report.model_report.results_read import Result, number, text
from onnxqat.verdict import Status

_STATUS: dict[str, Status] = {name: name for name in get_args(Status)}
_RUNS: dict[str, schema.Runs] = {"integer": "integers", "moved": "moved", "float": "float", "rejected": "rejected"}


def join_matrix(report: schema.ModelReport, result: Result) -> None:
    """Add the targets of a matrix to `report`, in place, and how each of them runs the nodes."""
    matrix = _matrix(result.content)
    numbers: dict[str, int] = {}
    for entry in _objects(matrix.get("targets")):
        backend, compiler = text(entry, "backend"), text(entry, "compiler")
        numbers[backend] = len(report.targets)
        integer, heavy = number(entry, "integer"), number(entry, "heavy")
        target = schema.Target(
            name=f"{backend} · {compiler} {text(entry, 'version')}".rstrip() if compiler else backend,
            integer=int(integer) if heavy and integer is not None else None,
            total=int(heavy) if heavy else None,
            largest_lsb=number(entry, "steps"),
            status=_STATUS.get(text(entry, "status"), ""),
            reason=text(entry, "reason"),
        )
        report.targets.append(target)
    nodes = {node.name: node for node in report.nodes}
    for row in _objects(matrix.get("nodes")):
        node = nodes.get(text(row, "name"))
        runs, kernels, steps = (_object(row.get(key)) for key in ("runs", "kernels", "steps"))
        for backend, how in runs.items():
            if node is None or backend not in numbers or how not in _RUNS:
                continue
            kernel = text(kernels, backend)
            absorbed = kernel == ABSORBED
            found = schema.Kernel(
                target=numbers[backend],
                runs="absorbed" if absorbed else _RUNS[how],
                kernel=kernel,
                largest_lsb=number(steps, backend),
            )
            node.kernels.append(found)


def _matrix(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the matrix itself: what ``handoff --json`` prints holds it among its details."""
    inner = _object(_object(content.get("details")).get("matrix"))
    return inner or content


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
