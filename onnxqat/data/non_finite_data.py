"""Data whose own values are not finite: what comes of them says nothing about a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.errors import DataError

Array = npt.NDArray[Any]


def error(feeds: Mapping[str, Array], batch: str, *, but: Collection[str] = ()) -> DataError | None:
    """The error for the first input of a batch that is not finite; None where all are.

    Args:
        feeds: the batch.
        batch: what messages call it.
        but: inputs that may be infinite, as masks are.
    """
    for name, given in feeds.items():
        if given.dtype.kind == "f" and name not in but and not np.isfinite(given).all():
            return DataError("data-non-finite", f"{batch}: input {name!r} has NaN or infinity{in_sample(given)}")
    return None


def in_sample(value: Array) -> str:
    """The first sample of a batch that is not finite in float32, as the end of a message."""
    if value.ndim == 0:
        return ""
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(value.astype(np.float32)).reshape(len(value), -1).all(axis=1)
    return f" in sample {int(np.argmax(bad))}"


def check(feeds: Mapping[str, Array], outputs: Mapping[str, Array], batch: str) -> None:
    """Refuse a batch that is not finite where the float model's outputs are not either.

    A model may take such values: masks are infinite, and missing ones NaN. Then its outputs are finite.

    Raises:
        DataError: ``data-non-finite``.
    """
    if all(value.dtype.kind != "f" or np.isfinite(value).all() for value in outputs.values()):
        return
    found = error(feeds, batch)
    if found is not None:
        raise found
