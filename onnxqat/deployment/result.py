"""Result of :func:`onnxqat.deployment.handoff.handoff`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, ClassVar

from onnxqat.deployment.base_compiler import HEAVY, NodeResult
from onnxqat.deployment.outputs import OutputCheck
from onnxqat.displayed import Displayed
from onnxqat.metrics import Scored
from onnxqat.types import Remark
from onnxqat.validation.compare import plain
from onnxqat.verdict import Verdict


@dataclasses.dataclass(frozen=True)
class Coverage:
    """Number of nodes of one heavy operator that run on integers, and of all its nodes."""

    op_type: str
    integer: int
    total: int


@dataclasses.dataclass(frozen=True)
class HandoffReport(Displayed):
    """One model handed to one target.

    Attributes:
        model: path, or what messages call it.
        backend: name of the backend table.
        compiler: name of the compiler, None where onnxqat drives none for this backend.
        version: its version, None where nothing was compiled.
        output: folder of the bundle.
        files: files of the bundle, relative to it.
        opset: operator set of the deploy form.
        ir_version: its IR version.
        samples: samples compared.
        same_as_train_form: whether the deploy form gives the very bits of the file handed in, in onnxruntime with
            optimizations off.
        outputs: the compiler's outputs against those of the file handed in; empty where nothing was compiled.
        coverage: integer nodes of heavy operators.
        nodes: how each node runs.
        failures: why the hand-off failed; empty when it passed.
        remarks: what is worth knowing.
        scores: of the runs ``float``, ``file`` (the file handed in) and ``compiled``, as far as there are any.
        verdicts: ``deployment`` and ``accuracy``.
        settings: how it was compiled (:attr:`onnxqat.deployment.base_compiler.CompilerResult.settings`).
    """

    displayed_by: ClassVar[str] = "onnxqat.report.build_handoff:from_handoff"

    model: str
    backend: str
    compiler: str | None
    version: str | None
    output: str
    files: tuple[str, ...]
    opset: int
    ir_version: int
    samples: int
    same_as_train_form: bool
    outputs: tuple[OutputCheck, ...]
    coverage: tuple[Coverage, ...]
    nodes: tuple[NodeResult, ...]
    failures: tuple[str, ...]
    remarks: tuple[Remark, ...]
    scores: tuple[Scored, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    settings: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def passed(self) -> bool | None:
        """Outcome: False with failures; otherwise None where nothing was compiled, else True."""
        if self.failures:
            return False
        return None if self.compiler is None else True

    @property
    def float_nodes(self) -> tuple[NodeResult, ...]:
        """Nodes that the compiler runs in float, or leaves to something else."""
        return tuple(node for node in self.nodes if node.kind in ("float", "rejected"))

    def to_dict(self) -> dict[str, Any]:
        """For JSON: infinite and undefined numbers are null."""
        return {"passed": self.passed, **plain(self)}


def coverage(nodes: Iterable[NodeResult]) -> tuple[Coverage, ...]:
    """Integer nodes and all nodes of each heavy operator that occurs."""
    listed = list(nodes)
    found = []
    for op_type in HEAVY:
        kinds = [node.kind for node in listed if node.op_type == op_type]
        if kinds:
            found.append(Coverage(op_type, sum(kind in ("integer", "moved") for kind in kinds), len(kinds)))
    return tuple(found)
