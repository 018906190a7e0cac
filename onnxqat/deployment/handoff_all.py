"""One QDQ model handed to several targets: a bundle for each, and one matrix of nodes and compilers."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from onnxqat.backends import schema
from onnxqat.deployment import base_compiler, choice
from onnxqat.deployment.handoff import handoff
from onnxqat.deployment.result import HandoffReport
from onnxqat.errors import BackendError, CheckError, UsageError
from onnxqat.graph import atomic, io
from onnxqat.graph.bundles import MANIFEST
from onnxqat.validation.compare import plain
from onnxqat.verdict import SEVERITY, Status

MATRIX = "matrix.json"
SCHEMA = 1
"""Version of the keys of ``matrix.json``; docs/schemas/handoff_matrix.json describes them."""


@dataclasses.dataclass(frozen=True)
class Target:
    """Outcome of the hand-off to one backend.

    Attributes:
        backend: name of its table.
        compiler: name of its compiler, None where onnxqat drives none.
        version: of the compiler; None where it is not installed.
        status: the worst verdict; red where the compiler refused the model.
        reason: the line behind it.
        remedy: what changes it, such as the command that makes a file for the target.
        install: what installs the compiler; empty where it is there, or where onnxqat drives none.
        accepted: whether the compiler took the model; None where nothing was compiled.
        integer: heavy nodes on integers.
        heavy: all heavy nodes.
        steps: largest difference of an output from the file handed in, in LSB; None where no numbers were run.
        scores: by metric, of the runs ``float``, ``file`` and ``compiled``, as far as there are any.
        settings: what the compiler was told, as of :class:`onnxqat.deployment.base_compiler.CompilerResult`.
        report: the whole report; None where the model was refused.
    """

    backend: str
    compiler: str | None
    version: str | None
    status: Status
    reason: str
    remedy: str
    install: str
    accepted: bool | None
    integer: int = 0
    heavy: int = 0
    steps: float | None = None
    scores: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    settings: dict[str, str] = dataclasses.field(default_factory=dict)
    report: HandoffReport | None = None


@dataclasses.dataclass(frozen=True)
class MatrixRow:
    """One node of the model on every target.

    Attributes:
        name: of the node.
        op_type: its operator.
        runs: by backend, how it runs (:attr:`onnxqat.deployment.base_compiler.NodeResult.kind`); what a backend's
            compiler does not list is not in it.
        kernels: by backend, the operator or kernel that the compiler chose.
        steps: by backend, the largest difference of its result in LSB, where it was traced.
    """

    name: str
    op_type: str
    runs: dict[str, str]
    kernels: dict[str, str]
    steps: dict[str, float]


@dataclasses.dataclass(frozen=True)
class HandoffMatrix:
    """One model and all targets that it was handed to.

    Attributes:
        model: path, or what messages call it.
        output: folder with a bundle for each target, and ``matrix.json``.
        targets: in the order that was asked for.
        nodes: in graph order.
    """

    model: str
    output: str
    targets: tuple[Target, ...]
    nodes: tuple[MatrixRow, ...]

    @property
    def passed(self) -> bool | None:
        """Outcome: False where a target is red; otherwise None where nothing was compiled at all, else True."""
        if any(target.status == "red" for target in self.targets):
            return False
        return True if any(target.accepted for target in self.targets) else None

    def to_dict(self) -> dict[str, Any]:
        """For JSON, as docs/schemas/handoff_matrix.json says: infinite and undefined numbers are null."""
        targets = [{k: v for k, v in vars(target).items() if k != "report"} for target in self.targets]
        found: dict[str, Any] = {"schema": SCHEMA, "model": self.model, "output": self.output, "passed": self.passed}
        return found | {"targets": plain(targets), "nodes": plain([vars(row) for row in self.nodes])}


def handoff_all(
    model: io.ModelSource,
    output: str | os.PathLike[str],
    backends: Sequence[str] | None = None,
    *,
    progress: Callable[[int, int | None], None] | None = None,
    **options: Any,
) -> HandoffMatrix:
    """Hand `model` to several backends: writes ``OUTPUT/BACKEND/``, a bundle for each, and ``OUTPUT/matrix.json``.

    A compiler that is not installed, or that refuses the model, is a row that says so; the others go on.

    Args:
        model: QDQ model; it is not changed.
        output: folder of the bundles.
        backends: names of tables, or paths of them; None: one table for each compiler that onnxqat drives, that which
            `model` was made for among them.
        progress: called with targets done and their number.
        options: of :func:`onnxqat.handoff`, the same for every target.

    Raises:
        UsageError: ``option-invalid``: a backend twice, or `output` is itself a bundle; and what
            :func:`onnxqat.handoff` raises for input that no target would take.
    """
    folder = Path(output)
    if (folder / MANIFEST).exists():
        text = f"{folder} is a bundle; several targets get a folder each, inside of the one that is given"
        raise UsageError("option-invalid", text, hint="give another folder")
    loaded = io.load(model)
    chosen = list(backends) if backends is not None else every_backend(loaded.metadata_props.get("onnxqat.backend", ""))
    tables = [schema.load(name) for name in chosen]
    names = [table.backend for table in tables]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError("option-invalid", f"{twice} is given twice", hint="name each backend once")
    targets = []
    for done, (name, table) in enumerate(zip(chosen, tables, strict=True)):
        targets.append(_handed(model, name, table, folder / table.backend, options))
        if progress is not None:
            progress(done + 1, len(chosen))
    source = io.name_of(model)
    matrix = HandoffMatrix(source, str(folder), tuple(targets), _rows(targets))
    atomic.make_folder(folder)
    content = json.dumps(matrix.to_dict(), indent=2, sort_keys=True, allow_nan=False) + "\n"
    atomic.write_atomic(folder / MATRIX, content.encode())
    return matrix


def every_backend(made_for: str = "") -> list[str]:
    """One table for each compiler: the one that a file was made for, else the first that extends no other.

    Args:
        made_for: the backend that the file names.
    """
    found = []
    for compiler in base_compiler.names():
        tables = choice.tables_of(compiler)
        found += [made_for] if made_for in tables else tables[:1]
    return found


def _handed(model: io.ModelSource, name: str, table: schema.Backend, folder: Path, options: dict[str, Any]) -> Target:
    """Hand `model` to one backend; a refusal is a result too."""
    compiler = choice.expected(table)
    version = None if compiler is None else compiler.version()
    install = "" if compiler is None or version is not None else compiler.missing().hint
    known = None if compiler is None else compiler.name
    try:
        report = handoff(model, name, folder, **options)
    except (CheckError, BackendError) as error:
        refused = None if version is None else False
        return Target(table.backend, known, version, "red", error.message, error.hint, install, refused)
    worst = max(report.verdicts, key=lambda verdict: SEVERITY[verdict.status])
    return Target(
        backend=table.backend,
        compiler=known,
        version=version,
        status=worst.status,
        reason=worst.reason,
        remedy=worst.remedy,
        install=install,
        accepted=None if report.compiler is None else True,
        integer=sum(c.integer for c in report.coverage),
        heavy=sum(c.total for c in report.coverage),
        steps=max((c.largest_steps for c in report.outputs), default=None),
        scores={score.name: dict(score.values) for score in report.scores},
        settings=dict(report.settings),
        report=report,
    )


def _rows(targets: Sequence[Target]) -> tuple[MatrixRow, ...]:
    """A row for each node that any compiler lists, in the order of the first that does."""
    rows: dict[str, MatrixRow] = {}
    for target in targets:
        for node in () if target.report is None else target.report.nodes:
            row = rows.setdefault(node.name, MatrixRow(node.name, node.op_type, {}, {}, {}))
            row.runs[target.backend], row.kernels[target.backend] = node.kind, node.detail
            if node.steps is not None:
                row.steps[target.backend] = node.steps
    return tuple(rows.values())
