"""Errors of weights at each width, with the codes and scales that the file will have at it.

Compensated rounding spreads what a code loses over the other weights of its filter, so that layers of many inputs gain far
more by it than depthwise ones. Nearest codes would say of both that they lose the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.bit_allocation.candidates import Layer
from onnxqat.calibration.rounding import Wanted, compensate
from onnxqat.calibration.weights import weight_qparams
from onnxqat.data.data import Data
from onnxqat.graph import query
from onnxqat.types import Placement, QParams

Array = npt.NDArray[Any]
Errors = Mapping[str, Mapping[int, Array]]
"""By the name of the weight and by width: float32, in the shape of the weight."""


def nearest(model: ir.Model, layers: Sequence[Layer]) -> dict[str, dict[int, Array]]:
    """Errors of nearest codes on the grids of calibration.

    Args:
        model: prepared float model.
        layers: with the specs of their weights by width.
    """
    return {
        layer.tensor: {width: _error(model, layer, grid) for width, grid in _grids(model, layer).items()}
        for layer in layers
    }


def compensated(model: ir.Model, layers: Sequence[Layer], data: Data, *, scales: bool) -> dict[str, dict[int, Array]]:
    """Errors of codes that were rounded on data, each layer alone and behind float inputs.

    Biases, which take up the mean error of their channels in the file, stay: so the mean counts as an error here.

    Args:
        model: prepared float model; it is not changed.
        layers: with the specs of their weights by width.
        data: calibration data; they are read once for each width.
        scales: whether the file may have other scales of narrow weights.
    """
    found: dict[str, dict[int, Array]] = {layer.tensor: {} for layer in layers}
    for width in sorted({width for layer in layers for width in layer.specs}):
        having = [layer for layer in layers if width in layer.specs]
        grids = {layer.tensor: _grids(model, layer)[width] for layer in having}
        rounded = model.clone()
        placed = [Placement(tensor, grid, "mixed-precision") for tensor, grid in grids.items()]
        # Scales of 2 and 3 bits as calibrated: with chosen ones most layers may get so few, and then training is to follow.
        _, others = compensate(rounded, placed, data, wanted=Wanted(biases=False, scales=scales))
        for layer in having:
            grid = others.get(layer.tensor, grids[layer.tensor])
            found[layer.tensor][width] = _error(model, layer, grid, rounded)
    return found


def _grids(model: ir.Model, layer: Layer) -> dict[int, QParams]:
    return {width: weight_qparams(_values(model, layer), spec) for width, spec in layer.specs.items()}


def _error(model: ir.Model, layer: Layer, grid: QParams, rounded: ir.Model | None = None) -> Array:
    moved = _values(model if rounded is None else rounded, layer)
    error: Array = numerics.fake_quantize(moved, grid) - _values(model, layer)
    return error


def _values(model: ir.Model, layer: Layer) -> Array:
    values = query.constant_array(model.graph.initializers[layer.tensor])
    assert values is not None  # the candidates are constants
    return np.asarray(values, np.float32)
