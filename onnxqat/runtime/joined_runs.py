"""Several batches through one session as if they were one: a model that prescribes its batch size takes no larger one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat.data.inputs import Feeds
from onnxqat.runtime.session import Session

Array = npt.NDArray[Any]


def run(session: Session, batches: Sequence[Feeds], names: Sequence[str] | None = None) -> dict[str, Array]:
    """Run `session` on each batch and join the results of :meth:`Session.run`."""
    return joined([session.run(feeds, names) for feeds in batches])


def joined(runs: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Values by name behind each other: along the first axis, or as a row where shapes do not allow that."""
    if len(runs) == 1:
        return dict(runs[0])
    return {name: _behind_each_other([found[name] for found in runs]) for name in runs[0]}


def _behind_each_other(values: Sequence[Array]) -> Array:
    if values[0].ndim and len({value.shape[1:] for value in values}) == 1:
        return np.concatenate(values)
    return np.concatenate([value.ravel() for value in values])
