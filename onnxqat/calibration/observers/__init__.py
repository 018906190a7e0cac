"""Range observers: one file an observer, its name is the observer's name (``TensorSpec.observer``).

Each module has a class ``Observer``, made with a :class:`~onnxqat.types.TensorSpec`; :func:`create` finds it.
"""

from __future__ import annotations

from typing import cast

from onnxqat import extension
from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.errors import UsageError
from onnxqat.types import TensorSpec

KIND = extension.Kind(
    name="observer",
    package=__name__,
    group="onnxqat.observers",
    lacks=extension.class_named("Observer", lambda: BaseObserver),
    page="docs/extending.md",
)


def create(spec: TensorSpec) -> BaseObserver:
    """A fresh observer for `spec`, of the kind that ``spec.observer`` names, which may be ``"percentile P"``.

    Raises:
        UsageError: ``name-unknown``, with the closest names that exist; ``option-invalid`` for a percentile that is none,
            and for a file without an observer.
    """
    kind, share = _with_share(spec.observer)
    observer = extension.load(KIND, kind).Observer
    if not share:
        return cast(BaseObserver, observer(spec))
    try:
        return cast(BaseObserver, observer(spec, float(share)))
    except (TypeError, ValueError) as error:
        raise UsageError("option-invalid", f"there is no observer {spec.observer!r}: {error}") from None


def _with_share(observer: str) -> tuple[str, str]:
    """Name, or path, and the number behind it; a path may have spaces itself."""
    path, suffix, share = observer.rpartition(extension.SUFFIX)
    if suffix and share[:1] in ("", " "):
        return path + suffix, share.strip()
    kind, _, share = observer.partition(" ")
    return kind, share
