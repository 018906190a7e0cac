"""Ranges that cost the outputs least, kept only where they still help once weights are rounded on the data."""

from __future__ import annotations

from collections.abc import Callable

from onnxqat.calibration.observers import auto
from onnxqat.data.data import Data
from onnxqat.graph import notes
from onnxqat.insertion.placing import Calibrated
from onnxqat.types import Remark

BETTER = 0.95
"""Share of the noise below which ranges of least squared error win: a smaller difference may be that of the samples."""


def choose(calibrated: Calibrated, data: Data, noise: Callable[[], float | None]) -> tuple[Remark, ...]:
    """Let ``auto`` observers take the range that costs the outputs least, or go back to those of their own error.

    A range is chosen with all weights in float, and may clip values that the network can do without. Weights that are
    rounded layer by layer then compensate for what was clipped too, which moves all other values. So the files with both
    kinds of ranges are compared on samples that neither was rounded on. Ranges of few bits stay as chosen: most of the
    noise is their own, and a dozen held-out samples say less of it than all the samples that they were chosen on.

    Args:
        calibrated: what the file is made from; the choices of its observers are set in place.
        data: calibration data.
        noise: measures the file with the present choices on held-out samples, its weights rounded layer by layer; gives
            None where weights are not rounded so.

    Returns:
        What was chosen.
    """
    observers = [o for o in calibrated.observers.values() if isinstance(o, auto.Observer)]
    own = [observer.choice for observer in observers]
    said = calibrated.choose_ranges(data)
    chosen = [observer.choice for observer in observers]
    narrow = any(observer.spec.qtype.bits < notes.NARROW for observer in observers)
    with_chosen = None if narrow or chosen == own else noise()
    if with_chosen is None:
        return said
    _set(observers, own)
    with_own = noise()
    if with_own is not None and with_own < BETTER * with_chosen:
        text = (
            "activation ranges by their own squared error: with those by the error at the outputs and weights rounded one "
            f"layer behind the other, noise on held-out samples is {with_chosen:.2g} in place of {with_own:.2g} of the signal"
        )
        return (Remark(text, (), "calibrate"),)
    _set(observers, chosen)
    return said


def _set(observers: list[auto.Observer], choices: list[str]) -> None:
    for observer, choice in zip(observers, choices, strict=True):
        observer.choice = choice
