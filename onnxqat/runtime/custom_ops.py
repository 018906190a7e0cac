"""Libraries of custom operators that the user names, for onnxruntime to load."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnxruntime

VARIABLE = "ONNXQAT_CUSTOM_OPS"
"""Environment variable with the paths of the libraries, separated as those of ``PATH``; every command heeds it."""


def libraries() -> tuple[str, ...]:
    """The paths that :data:`VARIABLE` holds."""
    return tuple(path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path)


def register(options: onnxruntime.SessionOptions) -> None:
    """Load the libraries for a session.

    Raises:
        Exception: onnxruntime's own, with its reason.
    """
    for library in libraries():
        options.register_custom_ops_library(library)
