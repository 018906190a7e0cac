"""A model that breaks ONNX's rules where no check of the file sees it, as onnx has none for sizes, axes and value types.

A lowering takes the rules for granted and fails in Python's words. onnxruntime, which states its own for each operator,
is asked then: where it refuses the model too, its reason is the error; where it does not, the import is at fault.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from onnxqat.calibration.session import Session
from onnxqat.errors import ModelError, QatError
from onnxqat.graph import io

_NO_KERNEL = "NOT_IMPLEMENTED"  # says nothing about the model


@contextlib.contextmanager
def blamed(source: io.ModelSource) -> Iterator[None]:
    """An import of `source` in the block; what fails in it with a model that onnxruntime refuses is the model's fault.

    Raises:
        ModelError: ``model-not-runnable``, ``model-too-large``, ``runtime-failed``: of onnxruntime's session.
    """
    try:
        yield
    except (QatError, MemoryError, OSError):
        raise
    except Exception as error:
        refused = _refusal(source)
        if refused is None:
            raise
        raise refused from error


def _refusal(source: io.ModelSource) -> ModelError | None:
    try:
        Session(io.load(source), optimize=False)
    except ModelError as error:
        return None if _NO_KERNEL in error.message else error
    return None
