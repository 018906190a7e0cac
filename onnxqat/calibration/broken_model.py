"""A model that breaks ONNX's rules where no check of the file sees it, as onnx has none for sizes, axes and value types.

Passes, rules and lowerings take ONNX's rules for granted and fail in Python's words. onnxruntime, which states its own for
each operator, is asked then: where it neither opens the model nor runs it, its reason is the error; else we are at fault.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from onnxqat.errors import DataError, ModelError, QatError
from onnxqat.graph import files_read, io

P = ParamSpec("P")
R = TypeVar("R")
_NO_KERNEL = "NOT_IMPLEMENTED"  # says nothing about the model
_OTHERS = (MemoryError, OSError, ImportError)  # say nothing about it either


@contextlib.contextmanager
def blamed(*sources: io.ModelSource) -> Iterator[None]:
    """Work on `sources` in the block; what fails in it with a model that onnxruntime refuses is the model's fault.

    Raises:
        ModelError: ``model-not-runnable``, ``model-too-large``, ``runtime-failed``: of onnxruntime's session.
    """
    try:
        yield
    except _OTHERS:
        raise
    except Exception as error:
        if isinstance(error, QatError) and error.code != "pass-postcondition":
            raise
        refused = next(filter(None, map(_refusal, sources)), None)
        if refused is None:
            raise
        raise refused from error


def guard(*models: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function a command, as :func:`onnxqat.graph.files_read.guard` does, whose arguments `models` are blamed."""

    def of(function: Callable[P, R]) -> Callable[P, R]:
        return files_read.guard(blames(*models)(function))

    return of


def blames(*models: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Blame the arguments `models` of a function that is no command: what it reads, it may replace."""

    def of(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def run(*arguments: P.args, **keywords: P.kwargs) -> R:
            given = signature.bind(*arguments, **keywords).arguments
            with blamed(*(given[name] for name in models)):
                return function(*arguments, **keywords)

        return run

    return of


def _refusal(source: io.ModelSource) -> ModelError | None:
    from onnxqat.calibration.data import random_data
    from onnxqat.calibration.session import Session

    try:
        session = Session(io.load(source), optimize=False)
        if all(info.shape is not None and all(isinstance(d, int) for d in info.shape[1:]) for info in session.inputs):
            session.run(next(iter(random_data(session.inputs, 1))))
    except ModelError as error:
        return None if _NO_KERNEL in error.message else error
    except DataError:  # an input of text, for which there are no random values
        return None
    return None
