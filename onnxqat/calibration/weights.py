"""Parameters of constant tensors, for which the whole array is at hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat import numerics
from onnxqat.calibration.observers import create
from onnxqat.calibration.observers._base import NonFiniteError, rows_of
from onnxqat.calibration.observers._histogram import BINS
from onnxqat.calibration.observers._search import ErrorOf, least_error_range, tried_together
from onnxqat.types import FloatArray, QParams, TensorSpec

_DIRECT = 2 * BINS
_CHANNELS = 256


def weight_qparams(values: npt.NDArray[Any], spec: TensorSpec) -> QParams:
    """Quantization parameters of the constant `values`, by the observer that `spec` names.

    1. ``mse``: the error is that of the values themselves where a channel has at most 8192 of them, else that of
       their histogram.
    2. ``entropy`` with fewer than 4096 values per channel is ``mse``: a divergence between histograms that are
       nearly empty says nothing.
    3. ``minmax``, ``percentile`` and any other: the observer, shown `values` once.

    A channel of zeros gets scale 1 and the zero point of zero (:func:`onnxqat.numerics.from_range`). A symmetric scale
    that is restricted is rounded up or down, whichever has the smaller squared error.

    Args:
        values: float16, float32 or float64, any shape that has the spec's channel axis.
        spec: grid, symmetry, axis and observer.

    Raises:
        NonFiniteError: `values` hold NaN or infinity.
        ValueError: `values` lack the channel axis, or are not floating point.
        UsageError: ``name-unknown``: no such observer.
    """
    spec = dataclasses.replace(spec, scale_bits=create(spec).scale_bits)
    if spec.block_size is not None:
        return _in_blocks(np.asarray(values), spec)
    rows = rows_of(np.asarray(values), spec.axis)
    channels, length = rows.shape
    if spec.observer == "entropy" and length < BINS:
        spec = dataclasses.replace(spec, observer="mse")
    by_row = dataclasses.replace(spec, granularity="channel", axis=0)
    # Blocks of channels bound the memory that their histograms take.
    blocks = [_range(rows[start : start + _CHANNELS], by_row) for start in range(0, max(channels, 1), _CHANNELS)]
    low, high = (np.concatenate(ends) for ends in zip(*blocks, strict=True))
    if spec.axis is None:
        low, high = low[0], high[0]
    found = numerics.from_range(low, high, spec)
    if spec.scale_bits is None or not spec.symmetric or not rows.size:
        return found
    free = numerics.from_range(low, high, spec.but(scale_bits=None))
    smaller = numerics.shorten(free.scale, spec.scale_bits, slack=1.0).astype(np.float32)
    return _better(rows, found, dataclasses.replace(found, scale=np.asarray(smaller)))


def _in_blocks(values: npt.NDArray[Any], spec: TensorSpec) -> QParams:
    """One scale for each `block_size` elements along the axis, which the last block may lack some of.

    Blocks are short: ``entropy`` is ``mse`` here too.
    """
    assert spec.axis is not None
    assert spec.block_size is not None
    size = values.shape[spec.axis]
    blocks = -(-size // spec.block_size)
    # The last element fills the last block up: it changes no range.
    padded = np.take(values, np.minimum(np.arange(blocks * spec.block_size), size - 1), spec.axis)
    cut = np.moveaxis(padded, spec.axis, -1)
    rows = cut.reshape(-1, spec.block_size)
    observer = "mse" if spec.observer == "entropy" else spec.observer
    by_row = dataclasses.replace(spec, granularity="channel", axis=0, block_size=None, observer=observer)
    found = weight_qparams(rows, by_row)
    shape = (*cut.shape[:-1], blocks)
    scale, zero_point = (np.moveaxis(part.reshape(shape), -1, spec.axis) for part in (found.scale, found.zero_point))
    return dataclasses.replace(found, scale=scale, zero_point=zero_point, axis=spec.axis, block_size=spec.block_size)


def _better(rows: npt.NDArray[Any], first: QParams, second: QParams) -> QParams:
    """Choose, per channel, the one of two scales with the smaller squared error on `rows` (C, L)."""
    closer = _squared_errors(rows, second) < _squared_errors(rows, first)
    scale = np.where(closer.reshape(first.scale.shape), second.scale, first.scale)
    return dataclasses.replace(first, scale=np.asarray(scale, np.float32))


def _squared_errors(rows: npt.NDArray[Any], qparams: QParams) -> npt.NDArray[np.float64]:
    """Squared error of each row, summed; per tensor there is one row."""
    parts = []
    for start in range(0, len(rows), _CHANNELS):
        part, block = slice(start, start + _CHANNELS), rows[start : start + _CHANNELS]
        own = qparams
        if qparams.axis is not None:
            own = dataclasses.replace(qparams, scale=qparams.scale[part], zero_point=qparams.zero_point[part], axis=0)
        if own.qtype.is_float or block.dtype != np.float32:
            difference = numerics.fake_quantize(block, own).astype(np.float64) - block
        else:
            grid = np.empty_like(block)
            _put_on_grid(block, own, grid)
            difference = np.subtract(grid, block, dtype=np.float64)
        parts.append(np.square(difference, out=difference).sum(axis=1))
    return np.concatenate(parts)


def _put_on_grid(rows: npt.NDArray[np.float32], qparams: QParams, out: npt.NDArray[np.float32]) -> None:
    """Write the result of :func:`onnxqat.numerics.fake_quantize` on an integer grid to `out`, without wider arrays.

    `out` may hold several candidates of `rows` (C, L), with the parameters of one behind those of another.
    """
    shape = (*out.shape[:-1], 1)
    scale, zero_point = qparams.scale.reshape(shape), qparams.zero_point.reshape(shape).astype(np.float32)
    with np.errstate(over="ignore"):
        np.divide(rows, scale, out=out)
    np.rint(out, out=out)
    # Half the time of numpy's clip.
    np.maximum(out, qparams.qtype.quant_min - zero_point, out=out)
    np.minimum(out, qparams.qtype.quant_max - zero_point, out=out)
    with np.errstate(over="ignore"):
        np.multiply(out, scale, out=out)


def _range(rows: npt.NDArray[Any], spec: TensorSpec) -> tuple[FloatArray, FloatArray]:
    """Range of each row, by the spec's observer; zeros for rows that hold nothing."""
    if rows.size and spec.observer == "mse" and rows.shape[1] <= _DIRECT:
        return _least_squares(rows, spec)
    observer = create(spec)
    observer.update(rows)
    return observer.range() if rows.size else (np.zeros(len(rows), np.float32), np.zeros(len(rows), np.float32))


def _least_squares(values: npt.NDArray[Any], spec: TensorSpec) -> tuple[FloatArray, FloatArray]:
    """Search on the values themselves, all rows at once."""
    if values.dtype.kind != "f":
        raise ValueError(f"weights are floating point values, not {values.dtype}")
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(values, np.float32)
    low, high = rows.min(axis=1), rows.max(axis=1)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise NonFiniteError("NaN or infinity among the weights")
    # What a range cuts off the ends of a row bounds its error from below: with 8 bits, all that cut more than a seventh of
    # the largest of some thousand weights lose more by that weight alone than the full range does by its steps.
    ends = np.stack([low, high], axis=1)[:, : rows.shape[1]]
    return least_error_range(low, high, spec, _errors_of(rows), rows.size, least=_errors_of(ends))


def _errors_of(rows: npt.NDArray[np.float32]) -> ErrorOf:
    """Squared errors of `rows` (C, L) by parameters of one candidate or several, one behind the other."""
    held = np.empty((tried_together(rows.size), *rows.shape), np.float32)

    def errors(qparams: QParams) -> npt.NDArray[Any]:
        count = qparams.scale.size // len(rows)
        grids = held[:count] if count <= len(held) else np.empty((count, *rows.shape), np.float32)
        _put_on_grid(rows, qparams, grids)
        np.subtract(grids, rows, out=grids)
        # One by one: how einsum cuts its sums depends on the rows in front.
        return np.concatenate([np.einsum("ij,ij->i", grid, grid, dtype=np.float64) for grid in grids])

    return errors
