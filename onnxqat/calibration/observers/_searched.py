"""Ranges that were searched for before: an observer is merged, copied and read as another, and values come again.

A search takes some milliseconds, and depends on a histogram and a rule alone. The same tensors are seen in front of a
Reshape and behind it, by every candidate of ``auto``, and by each file that is made of one network on the same data.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import numpy.typing as npt

from onnxqat.calibration.observers._histogram import HistogramObserver

_Range = tuple[npt.NDArray[Any], npt.NDArray[Any]]

MOST = 1024
"""Ranges that are kept, those that were asked for last: a few hundred bytes each."""

KEPT: OrderedDict[Hashable, _Range] = OrderedDict()
_LOCK = threading.Lock()


def once(observer: HistogramObserver, rule: Hashable, search: Callable[[], _Range]) -> _Range:
    """The result of `search`, which is made where none was made for these values by this rule.

    Args:
        observer: what it searches on, by its limits and its histogram.
        rule: all else that it depends on.
        search: low and high end of a range, shape (1,); they are not to be changed.
    """
    if len(observer.counts) > 1:  # a row for each channel is that of a weight, which nobody else has
        return search()
    limits = observer.low.tobytes(), observer.high.tobytes(), observer.exponent.tobytes()
    key = rule, limits, hashlib.sha256(observer.counts.data).digest()
    with _LOCK:
        found = KEPT.get(key)
        if found is not None:
            KEPT.move_to_end(key)
    if found is None:
        found = search()
        with _LOCK:
            KEPT[key] = found
            while len(KEPT) > MOST:
                KEPT.popitem(last=False)
    return found
