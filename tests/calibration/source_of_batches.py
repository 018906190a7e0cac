"""A module that data sources import as ``module:function``."""

from collections.abc import Iterator
from typing import Any

import numpy as np


def batches() -> Iterator[dict[str, Any]]:
    """Three batches of different size."""
    for size in (1, 2, 3):
        yield {"x": np.full((size, 4), size, np.float32)}


def broken() -> Iterator[Any]:
    """One batch, then an error of the user's own."""
    yield np.zeros((1, 4), np.float32)
    raise RuntimeError("disk on fire")


NOT_A_FUNCTION = 3
