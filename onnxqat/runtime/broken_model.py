"""A model that breaks ONNX's rules where no check of the file sees it, as onnx has none for sizes, axes and value types.

Passes, rules and lowerings take ONNX's rules for granted and fail in Python's words. onnxruntime, which states its own for
each operator, is asked then: where it neither opens the model nor runs it, its reason is the error; else we are at fault.

What it lacks itself is no reason, nor are sizes, crashes, or values that it was fed: a failure of ours would hide behind it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from onnxqat.errors import ModelError, QatError
from onnxqat.graph import files_read, io

if TYPE_CHECKING:
    from onnxqat.runtime.session import Session

P = ParamSpec("P")
R = TypeVar("R")
# What onnxruntime says of what it does not have: a kernel for a type, a vendor's operator, one that is newer than it is.
_LACKS = ("NOT_IMPLEMENTED", "not a registered function", "No Op registered")
_OTHERS = (MemoryError, OSError, ImportError)  # say nothing about the model either
# A batch that models divide (frames of a video, views of a scene) fails at 1; this one is a multiple of 1 to 4, 6, 8, 12.
_BATCHES = (1, 24)


@contextlib.contextmanager
def blamed(*sources: io.ModelSource) -> Iterator[None]:
    """Work on `sources` in the block; what fails in it with a model that onnxruntime refuses is the model's fault.

    Raises:
        ModelError: ``model-not-runnable``: of onnxruntime's session, from the failure that it explains.
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
    """Error of onnxruntime on the unoptimized model, None if it runs or onnxruntime merely lacks something."""
    from onnxqat.runtime.session import Session

    try:
        _run(Session(io.load(source), optimize=False))
    except ModelError as error:
        lacks = error.code != "model-not-runnable" or any(text in error.message for text in _LACKS)
        return None if lacks else error
    return None


def _run(session: Session) -> None:
    """Run on random numbers; what each batch ends with is raised.

    Only runs on floats tell: indices, sizes and switches at random are wrong ones. So are sizes of axes that are no batch.
    """
    from onnxqat.data.data import random_data

    if not all(i.dtype.startswith("float") and _is_open_in_its_batch_only(i.shape) for i in session.inputs):
        return
    refused: ModelError | None = None
    for size in _BATCHES:
        sized = [
            dataclasses.replace(i, shape=tuple(d if isinstance(d, int) else size for d in i.shape or ()))
            for i in session.inputs
        ]
        try:
            session.run(next(iter(random_data(sized, 1))))
        except ModelError as error:
            refused = error
        else:
            return
    if refused is not None:
        raise refused


def _is_open_in_its_batch_only(shape: tuple[int | str | None, ...] | None) -> bool:
    return shape is not None and all(isinstance(d, int) for d in shape[1:])
