"""Scales of narrow weights by the error at the layer's output, beside those that calibration found by the weights' own.

With few codes a scale either clips large weights or leaves small ones few steps; which costs less depends on the inputs that
they multiply. So some scales around that of calibration are tried, each with the rounding that follows from it, as AWQ (Lin
et al., MLSys 2024) tries ends of ranges.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from onnxqat import numerics
from onnxqat.calibration.gptq import Doubles, Solver
from onnxqat.graph import notes
from onnxqat.types import QParams

FACTORS = (0.7, 0.8, 0.9, 1.1, 1.2)
"""Multiples of the scale of calibration. Filters of 64 to 256 inputs, 4 bits, have 1 to 2 dB less error with the best of them, depthwise
ones with correlated inputs 3; twice as many factors gain 0.1."""

FINE_FACTORS = (0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.05, 1.1, 1.15, 1.2)
"""The same for filters of few inputs: depthwise ones of a MobileNetV2 have 0.5 dB less error on other images than with the others."""

SMALLEST_WIDTH = 4
"""Bits from which on scales are searched wherever they are free. Training follows most files with fewer, and learns them; in one
that is used as it is, single layers of 2 or 3 bits are searched too."""

FEWEST_BITS = 3
"""Significant bits of a scale from which on there are others within :data:`FACTORS` of it."""


def is_searched(grid: QParams, inputs: int, axis_size: int, parts: int, *, trained: bool = True) -> bool:
    """Check whether other scales are tried for a weight.

    Args:
        grid: of the weight.
        inputs: of each filter.
        axis_size: of the weight's axis that blocks lie along.
        parts: that the filters are split into.
        trained: training follows where the weight has fewer bits than :data:`SMALLEST_WIDTH`.
    """
    smallest = SMALLEST_WIDTH if trained else 0
    if not smallest <= grid.qtype.bits < notes.NARROW or grid.axis is None or parts > 1:
        return False  # wide grids lose next to nothing; one scale for all filters, and parts, depend on each other
    short = grid.scale_bits is not None and grid.scale_bits < FEWEST_BITS
    return not short and (not grid.block_size or inputs == axis_size)


def tried(
    grid: QParams, solver: Solver, rows: Doubles, scale: Doubles, low: Doubles, high: Doubles
) -> Iterator[Doubles]:
    """Other scales for filters: each factor for whole filters, or the best factor of each block.

    Args:
        grid: of the weight.
        solver: of the layer's inputs.
        rows: weights (M, D).
        scale: of calibration, (M, D).
        low: smallest code, zero point subtracted, (M, D).
        high: largest code, the same.
    """
    others = (_shortened(scale * factor, grid.scale_bits) for factor in FACTORS)
    if not grid.block_size:
        yield from others
        return
    best = scale.copy()
    choices = [scale, *others]
    for start in range(0, rows.shape[1], grid.block_size):
        part = slice(start, start + grid.block_size)
        own = Solver(solver.second[part, part])
        given = [each[:, part] for each in (rows, low, high)]
        errors = (given[0] - own.codes(given[0], choice[:, part], *given[1:]) * choice[:, part] for choice in choices)
        least = np.argmin([own.costs(error) for error in errors], axis=0)
        best[:, part] = np.choose(least[:, None], [choice[:, part] for choice in choices])
    yield best


def fine(grid: QParams, scale: Doubles) -> list[Doubles]:
    """Scales for filters of few inputs, that of calibration first.

    Args:
        grid: of the weight, without blocks.
        scale: of calibration, by weight.
    """
    return [scale, *(_shortened(scale * factor, grid.scale_bits) for factor in FINE_FACTORS)]


def _shortened(scale: Doubles, bits: int | None) -> Doubles:
    return np.asarray(numerics.shorten(scale, bits), np.float32).astype(np.float64)


def with_scales(grid: QParams, scale: np.ndarray) -> QParams:
    """`grid` with the scales that the weights of `scale`, in the shape of the weight, have; those of calibration's shape."""
    axis = grid.axis
    assert axis is not None
    if grid.block_size:
        found = np.take(scale, np.arange(0, scale.shape[axis], grid.block_size), axis)
    else:
        found = np.moveaxis(scale, axis, 0).reshape(scale.shape[axis], -1)[:, 0]
    return dataclasses.replace(grid, scale=np.asarray(found, np.float32))
