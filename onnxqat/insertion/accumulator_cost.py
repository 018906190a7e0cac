"""Cost of ``--accumulator-bits`` against the same file without a bound, in decibels on a few samples."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxqat.data.data import Data
from onnxqat.insertion import decibels, exactness
from onnxqat.insertion.decibels import Place
from onnxqat.insertion.placing import Calibrated
from onnxqat.placement.table_overrides import Overrides
from onnxqat.types import Remark


def cost(original: ir.Model, calibrated: Calibrated, data: Data, place: Place) -> tuple[Remark, ...]:
    """Compare the file of `calibrated` with that of the same ranges whose sums may be of any width.

    Args:
        original: the float model as it was given.
        calibrated: what the file is made from; its model is not changed.
        data: calibration data.
        place: inserts quantizers.

    Returns:
        A remark; none without a bound, where the data can be read only once, or where onnxruntime does not run a file.
    """
    bits = calibrated.table.accumulator_bits
    if bits is None or not data.repeatable:
        return ()
    free = calibrated.table.model_copy(update={"accumulator_bits": None})
    other = dataclasses.replace(calibrated, table=free)
    found = decibels.compared(original, (calibrated, other), data, place, precise=True)
    if found is None:
        return ()
    bound, plain = found.worst
    text = (
        f"accumulators of {bits} bits cost {max(plain - bound, 0.0):.1f} dB: the worst output has {bound:.1f} dB, and "
        f"{plain:.1f} without a bound, on {found.samples} calibration samples"
    )
    return (Remark(text, (), "insert"),)


def of_options(
    original: ir.Model, calibrated: Calibrated, asked: tuple[str, Overrides], data: Data, place: Place
) -> tuple[Remark, ...]:
    """Return what ``--exact`` and ``--accumulator-bits`` cost; see :func:`exactness.cost` and :func:`cost`."""
    exact = exactness.cost(original, calibrated, asked, data, place)
    return (*exact, *cost(original, calibrated, data, place))
