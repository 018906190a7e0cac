"""The report of ``handoff`` to several targets: a row for each compiler, and a column for each beside the nodes."""

from __future__ import annotations

from pathlib import Path

from onnxqat.deployment.base_compiler import ABSORBED
from onnxqat.deployment.handoff_all import MATRIX, HandoffMatrix, MatrixRow, Target
from onnxqat.report.model import Cell, Column, Figure, Report, Table
from onnxqat.shell import command

WORDS = {"integer": "integers", "moved": "integers", "float": "float", "rejected": "rejected"}


def from_matrix(matrix: HandoffMatrix) -> Report:
    """Build the report.

    Args:
        matrix: of :func:`onnxqat.deployment.handoff_all.handoff_all`.
    """
    red = [target for target in matrix.targets if target.status == "red"]
    compiled = sum(bool(target.accepted) for target in matrix.targets)
    root = Path(matrix.output)
    bundles = [str(root / t.backend) for t in matrix.targets if t.report is not None]
    return Report(
        kind="handoff_matrix",
        title=f"{matrix.model} for {len(matrix.targets)} targets",
        passed=matrix.passed,
        figures=(
            Figure("targets", "targets", len(matrix.targets), "count"),
            Figure("compiled", "compiled", compiled, "count", f"of {len(matrix.targets)}"),
            Figure("red", "red", len(red), "count"),
        ),
        tables=tuple(table for table in (_targets(matrix), _nodes(matrix)) if table.rows),
        failures=tuple(f"{target.backend}: {target.reason}" for target in red),
        files=(*bundles, str(root / MATRIX)),
        next_command=_next_command(matrix, red),
        details={"matrix": matrix.to_dict()},
    )


def _next_command(matrix: HandoffMatrix, red: list[Target]) -> str:
    return "" if not red else red[0].remedy or command("lint", matrix.model, backend=red[0].backend)


def _targets(matrix: HandoffMatrix) -> Table:
    """Return the table of targets: verdict, compiler, share of integer layers, largest difference, scores, remedy."""
    metrics = list(dict.fromkeys(name for target in matrix.targets for name in target.scores))
    columns = [
        Column("backend", "target"),
        Column("status", "verdict"),
        Column("compiler", "compiler"),
        Column("integer", "heavy on integers"),
        Column("steps", "largest difference, LSB", "number"),
        *(Column(f"score_{name}", f"{name}, compiled", "number") for name in metrics),
        Column("settings", "compiled with"),
        Column("reason", "why"),
        Column("remedy", "what changes it"),
    ]
    rows: list[tuple[Cell, ...]] = []
    for target in matrix.targets:
        version = f", not installed: {target.install}" if target.install else f" {target.version or ''}"
        scores = [target.scores.get(name, {}).get("compiled") for name in metrics]
        rows.append(
            (
                target.backend,
                target.status,
                "none" if target.compiler is None else f"{target.compiler}{version}".rstrip(),
                f"{target.integer} of {target.heavy}" if target.heavy else None,
                target.steps,
                *scores,
                ", ".join(f"{key} {value}" for key, value in target.settings.items()) or None,
                target.reason,
                target.remedy or None,
            )
        )
    return Table("targets", "Targets", tuple(columns), tuple(rows))


def _nodes(matrix: HandoffMatrix) -> Table:
    backends = [t.backend for t in matrix.targets if t.report is not None and t.report.nodes]
    columns = (Column("name", "node"), Column("op_type", "operator"), *(Column(name, name) for name in backends))
    rows = tuple((row.name, row.op_type, *(_word(row, name) for name in backends)) for row in matrix.nodes)
    return Table(
        "matrix", "Nodes on each compiler", columns, rows, note="A dash: absorbed by a neighbour, or not listed."
    )


def _word(row: MatrixRow, backend: str) -> str | None:
    return None if row.kernels.get(backend) == ABSORBED else WORDS.get(row.runs.get(backend, ""))
