"""Observations of all processes put together, so that each of them gets the same scales."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from onnxqat.calibration.row_dynamic_range import RowSizes
from onnxqat.compat.observing import Observing


def from_all_processes(observing: Observing) -> None:
    """Make the observers of `observing` those of one process that has seen what all have; alone, nothing changes."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, (observing.observers, observing.sizes))
    merge(observing, found)


def merge(observing: Observing, found: list[tuple[dict[str, Any], dict[str, RowSizes]]]) -> None:
    """Put observers and row sizes of several processes, in the order of their ranks, into `observing`."""
    observing.clear()
    for observers, sizes in found:
        for name, observer in observers.items():
            if observing.observers[name].count:
                observing.observers[name].merge(observer)
            else:
                observing.observers[name] = observer
        for name, counted in sizes.items():
            observing.sizes[name].counts.update(counted.counts)
