"""Preprocessing by a function: that of a user's file, or of another package's entry point.

The file has a function ``preprocess``: it takes an image as Pillow opened it, in any mode and size, and returns one sample
without the batch axis, an array of shape (C, H, W) or (H, W, C).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from onnxqat import extension
from onnxqat.errors import UsageError

if TYPE_CHECKING:
    from PIL import Image


def _lacks(module: ModuleType) -> str | None:
    return None if callable(getattr(module, "preprocess", None)) else "there is no function preprocess(image)"


KIND = extension.Kind(
    name="preprocessing", package="", group="onnxqat.preprocess", lacks=_lacks, page="docs/extending.md"
)


def is_named(line: str) -> bool:
    """Check whether `line` is the path of a file or the name of an entry point, and no line of steps.

    Entry points are read from files of all packages that are installed: a line with a step that has a value asks for none.
    """
    if extension.is_file(line):
        return True
    return not {"=", ","} & {*line} and extension.entry_point(KIND.group, line) is not None


def function(name: str) -> Callable[[Image.Image], Any]:
    """The function of a file, or of an entry point; its errors name the file.

    Raises:
        UsageError: ``name-unknown``; ``option-invalid`` for a file that is missing, cannot be imported or has no function
            ``preprocess``.
    """
    module = extension.load(KIND, name) if extension.is_file(name) else _installed(name)
    return extension.blamed(KIND, name, module.preprocess)


@functools.cache  # once for all images
def _installed(name: str) -> ModuleType:
    return extension.load(KIND, name)


def sample(name: str, image: Image.Image, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """One sample of three axes, of the model's `dtype`.

    Raises:
        UsageError: ``extension-failed``: the function raised, or gave something else.
    """
    made = np.asarray(function(name)(image))
    if made.ndim != 3 or made.dtype.kind not in "fiub":
        given = f"an array of shape {list(made.shape)} and type {made.dtype}"
        raise UsageError(
            "extension-failed",
            f"{name} gave {given}",
            hint="return one sample without the batch axis, as in (3, 224, 224)",
        )
    # Integers go into floats, and no float is cut to an integer.
    if not np.can_cast(made.dtype, dtype, "same_kind") and not (made.dtype.kind in "iu" and dtype.kind in "iu"):
        raise UsageError("extension-failed", f"{name} gave {made.dtype}, and the model's input is {dtype}")
    return np.ascontiguousarray(made, dtype)
