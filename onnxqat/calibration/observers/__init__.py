"""Range observers: one file an observer, its name is the observer's name (``TensorSpec.observer``).

Each module has a class ``Observer``, made with a :class:`~onnxqat.types.TensorSpec`; :func:`create` finds it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import cast

import numpy as np

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
    elsewhere={
        "kl": "entropy",  # PPQ, PaddleSlim
        "tf": "minmax",  # AIMET, as the next three
        "posttrainingtf": "minmax",
        "tfenhanced": "mse",
        "posttrainingtfenhanced": "mse",
        "histogram": "mse",  # HistogramObserver of torch: the least squared error
    },
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


def joined(observer: BaseObserver, others: Sequence[BaseObserver]) -> BaseObserver:
    """An observer of the streams of `observer` and of `others`, for its spec; none of them is changed.

    A range that an operator states beside ranges of data, as of Sin in front of a Concat, has no values to join with
    theirs: then the ends of all ranges are covered.
    """
    if all(type(other) is type(observer) for other in others):
        return observer.joined(others)
    spec = observer.spec
    whole = create(dataclasses.replace(spec, observer="minmax"))
    for each in (observer, *others):
        if each.count:
            ends = np.stack(each.for_spec(spec).range(), -1)  # (2,), or (C, 2) along the channel axis
            whole.update(ends if spec.axis is None else ends.reshape(*(1,) * spec.axis, *ends.shape))
    return whole


def _with_share(observer: str) -> tuple[str, str]:
    """Name, or path, and the number behind it; a path may have spaces itself."""
    path, suffix, share = observer.rpartition(extension.SUFFIX)
    if suffix and share[:1] in ("", " "):
        return path + suffix, share.strip()
    kind, _, share = observer.partition(" ")
    return kind, share
