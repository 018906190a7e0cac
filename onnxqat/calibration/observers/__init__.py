"""Range observers: one file an observer, its name is the observer's name (``TensorSpec.observer``).

Each module has a class ``Observer``, made with a :class:`~onnxqat.types.TensorSpec`; :func:`create` finds it.
"""

from __future__ import annotations

from typing import cast

from onnxqat import discover
from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.types import TensorSpec


def create(spec: TensorSpec) -> BaseObserver:
    """A fresh observer for `spec`, of the kind that ``spec.observer`` names.

    Raises:
        UsageError: ``name-unknown``, with the closest names that exist.
    """
    return cast(BaseObserver, discover.load(__name__, spec.observer).Observer(spec))
