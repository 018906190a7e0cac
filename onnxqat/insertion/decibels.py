"""Signal to noise of two files that were made from one calibration, against the float model, on a few samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.data.data import Data
from onnxqat.data.inputs import Feeds, samples_of
from onnxqat.errors import ModelError
from onnxqat.insertion import trial
from onnxqat.insertion.placing import Calibrated
from onnxqat.runtime import joined_runs
from onnxqat.runtime.session import Session

Array = npt.NDArray[Any]

Place = Callable[..., None]
"""Function of a model and remarks, in place, with the keywords ``table``, ``plan`` and ``resolved``."""


@dataclasses.dataclass(frozen=True)
class Compared:
    """Two files that were run.

    Attributes:
        worst: signal to noise of the worst output of each, in decibels.
        sessions: of both.
        batches: samples that they ran on.
    """

    worst: tuple[float, float]
    sessions: tuple[Session, Session]
    batches: Sequence[Feeds]

    @property
    def samples(self) -> int:
        """Number of samples."""
        return sum(map(samples_of, self.batches))


def compared(
    original: ir.Model, pair: tuple[Calibrated, Calibrated], data: Data, place: Place, *, precise: bool
) -> Compared | None:
    """Run the files that `pair` leads to; weights are rounded to nearest, so that only scales and pairs differ.

    Args:
        original: the float model as it was given.
        pair: what the files are made from; their models are not changed.
        data: calibration data, which can be read more than once.
        place: inserts quantizers.
        precise: keep kernels from saturating.

    Returns:
        None where onnxruntime does not run a file, or a result is not finite.
    """
    batches = trial.samples(data)
    try:
        wanted = joined_runs.run(Session(original, optimize=True, what="the float model"), batches)
        first, second = (_session(each, place, precise=precise) for each in pair)
        worst = tuple(_worst(joined_runs.run(session, batches), wanted) for session in (first, second))
    except ModelError:
        return None  # the trial tells why
    return Compared((worst[0], worst[1]), (first, second), batches) if np.isfinite(worst).all() else None


def _session(calibrated: Calibrated, place: Place, *, precise: bool) -> Session:
    """The default session of the file that `calibrated` leads to."""
    model, plan = calibrated.model.clone(), calibrated.plan()
    place(model, [], table=calibrated.table, plan=plan, resolved=calibrated.resolve(plan))
    return Session(model, optimize=True, precise=precise, what="the quantized model", threads=1)


def _worst(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> float:
    alike = (n for n, w in wanted.items() if w.dtype.kind == "f" and w.shape == found[n].shape)
    return min((trial.sqnr(found[n], wanted[n]) for n in alike), default=np.inf)
