"""Range observers: one file an observer, its name is the observer's name (``TensorSpec.observer``).

Each module has a class ``Observer``, made with a :class:`~onnxqat.types.TensorSpec`; :func:`create` finds it.
"""

from __future__ import annotations

from typing import cast

from onnxqat import discover
from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.errors import UsageError
from onnxqat.types import TensorSpec


def create(spec: TensorSpec) -> BaseObserver:
    """A fresh observer for `spec`, of the kind that ``spec.observer`` names: a file, or ``"percentile P"``.

    Raises:
        UsageError: ``name-unknown``, with the closest names that exist; ``option-invalid`` for a percentile that is none.
    """
    kind, _, share = spec.observer.partition(" ")
    observer = discover.load(__name__, kind).Observer
    if not share:
        return cast(BaseObserver, observer(spec))
    try:
        return cast(BaseObserver, observer(spec, float(share)))
    except (TypeError, ValueError) as error:
        raise UsageError("option-invalid", f"there is no observer {spec.observer!r}: {error}") from None
