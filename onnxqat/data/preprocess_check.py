"""Check of the promises that every preprocessing function makes, on small pictures of all modes and sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from onnxqat import extension
from onnxqat.data import preprocess_file
from onnxqat.promises import BrokenError, ExtensionCheck, try_each

if TYPE_CHECKING:
    from PIL import Image

_SIZES = ((48, 32), (32, 48), (40, 40), (5, 7), (300, 200))
"""Width and height: wide, high, square, smaller and larger than what networks take."""

_MODES = ("L", "RGBA", "P", "LA", "1", "CMYK")
"""Modes that image files come in beside RGB."""


def check(name: str) -> ExtensionCheck:
    """Try a preprocessing: the path of its file, or its name.

    1. ``sample``: a picture gives an array of numbers with three axes, without the batch axis.
    2. ``sizes``: pictures of other sizes give the same shape and type.
    3. ``modes``: grey, palette, transparent and printed pictures do, too.
    4. ``finite``: no value is NaN or infinite.
    5. ``input``: the picture stays as it is.
    6. ``second run``: the same picture gives the same sample, so nothing in it is random.

    Raises:
        UsageError: there is no such preprocessing; ``dependency-missing``: Pillow is not installed.
    """
    preprocess_file.function(name)
    trials: dict[str, Callable[[], str | None]] = {
        "sample": lambda: _sample(name, _pictures()),
        "sizes": lambda: _alike(name, _pictures()),
        "modes": lambda: _alike(name, {**_pictures(), **_modes()}),
        "finite": lambda: _finite(name, {**_pictures(), **_modes()}),
        "input": lambda: _input(name, _pictures()),
        "second run": lambda: _second_run(name, _pictures()),
    }
    return ExtensionCheck(extension.key_of(name), try_each(trials), _tried(name))


def _pictures() -> dict[str, Image.Image]:
    """Return new pictures of each size: a function may have changed others in place."""
    return {f"{width} x {height}": _picture(width, height) for width, height in _SIZES}


def _modes() -> dict[str, Image.Image]:
    return {mode: _picture(*_SIZES[0]).convert(mode) for mode in _MODES}


def _picture(width: int, height: int) -> Image.Image:
    from PIL import Image

    random = np.random.default_rng(0)
    return Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))


def _made(name: str, picture: Image.Image) -> npt.NDArray[Any]:
    return preprocess_file.sample(name, picture, np.dtype(np.float32))


def _tried(name: str) -> str:
    try:
        shape = list(_made(name, _picture(*_SIZES[0])).shape)
    except Exception:  # which the promises say
        return ""
    return f"samples of shape {shape}"


def _sample(name: str, pictures: Mapping[str, Image.Image]) -> None:
    _made(name, next(iter(pictures.values())))


def _alike(name: str, pictures: Mapping[str, Image.Image]) -> None:
    first = ""
    for what, picture in pictures.items():
        made = np.asarray(preprocess_file.function(name)(picture))
        given = f"shape {list(made.shape)} and type {made.dtype}"
        first = first or given
        if given != first:
            raise BrokenError(f"a picture of {what} gives {given}, another {first}")


def _finite(name: str, pictures: Mapping[str, Image.Image]) -> None:
    for what, picture in pictures.items():
        if not np.isfinite(_made(name, picture)).all():
            raise BrokenError(f"a picture of {what} gives a value that is not finite")


def _input(name: str, pictures: Mapping[str, Image.Image]) -> None:
    for what, picture in pictures.items():
        before = np.array(picture.copy())
        _made(name, picture)
        if not np.array_equal(np.array(picture), before):
            raise BrokenError(f"it changes a picture of {what} in place")


def _second_run(name: str, pictures: Mapping[str, Image.Image]) -> None:
    for what, picture in pictures.items():
        if not np.array_equal(_made(name, picture), _made(name, picture), equal_nan=True):
            raise BrokenError(f"a picture of {what} gives another sample the second time")
