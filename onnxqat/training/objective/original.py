"""The float model that a QDQ file was made from: its teacher where none is given and there are no labels."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxqat.bridge.module import OnnxModule
from onnxqat.errors import QatError, UsageError
from onnxqat.graph import io, notes, provenance
from onnxqat.training.objective import teachers
from onnxqat.training.objective.teachers import TeacherSpec
from onnxqat.types import Remark


@dataclasses.dataclass(frozen=True)
class Original:
    """The float model behind a QDQ file.

    Attributes:
        path: where it was found; None where it cannot teach.
        teachers: itself, or nothing.
        remarks: which teacher there is, where that matters.
    """

    path: Path | None = None
    teachers: tuple[TeacherSpec, ...] = ()
    remarks: tuple[Remark, ...] = ()

    @property
    def module(self) -> OnnxModule | None:
        """The float model as a module with the names of the file; None without one."""
        found = self.teachers[0].module if self.teachers else None
        return found if isinstance(found, OnnxModule) else None


def given(teacher: io.ModelSource, graph: ir.Model) -> Original:
    """The float model that the user names.

    Raises:
        ModelError: the file's errors.
        UsageError: ``option-invalid`` where it does not take what `graph` does.
    """
    found = teachers.load([teacher])
    teachers.check_inputs(found, graph)
    return Original(None, tuple(found))


def find(graph: ir.Model, source: Any) -> Original:
    """The float model that `graph` records, where its file is found and takes and gives what `graph` does.

    With its quantizers off, a file does not compute what the float model does once its weights were rounded on calibration
    data, its biases corrected, or anything trained. At 8 bits the difference is next to nothing.

    Args:
        graph: QDQ model.
        source: the model as the caller gave it; the float model is looked up beside it where it is a path.

    Raises:
        UsageError: ``option-invalid`` where narrow weights were rounded on data and there is no float model to teach.
    """
    path = provenance.find_float(graph, source)
    if path is None:
        return _without(graph, "is not found")
    try:
        (found,) = teachers.load(path)
        teachers.check_inputs([found], graph)
    except QatError as error:
        return _without(graph, f"cannot teach: {error.message}", says=True)
    if set(getattr(found.module, "output_names", ())) != {str(v.name) for v in graph.graph.outputs}:
        return _without(graph, "has other outputs", says=True)
    return Original(path, (found,), (_remark(f"the teacher is {path}, the float model that the file was made from"),))


def _without(graph: ir.Model, why: str, *, says: bool = False) -> Original:
    """The file as its own teacher, where it can be one; `says` that, where the float model was expected to teach."""
    name = provenance.of(graph).float_model or "the float model that the file was made from"
    if notes.moves_function(graph):
        raise UsageError(
            "option-invalid",
            f"there is no teacher: the file's own weights were rounded on calibration data, and {name} {why}",
            hint="give the float model as the teacher, or labels",
        )
    return Original(
        remarks=(_remark(f"the teacher is the file with its quantizers off: {name} {why}"),) if says else ()
    )


def _remark(text: str) -> Remark:
    return Remark(text, source="teacher")
