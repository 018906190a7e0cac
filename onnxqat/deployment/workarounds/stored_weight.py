"""The stored weight of a layer in a deploy form, and one like it in another arrangement."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxqat.deployment.workarounds import pair
from onnxqat.graph import build, query, walk
from onnxqat.graph.qdq import DEQUANTIZE


class Stored(NamedTuple):
    """A weight whose numbers the file holds.

    Attributes:
        value: what the layer reads.
        array: codes, or floats where it is not quantized.
        stored: the tensor that holds them.
        quantizer: its DequantizeLinear; None where it is not quantized.
        axis: axis of the scales, counted from 0; None where there is one scale, or none.
    """

    value: ir.Value
    array: np.ndarray
    stored: ir.Value
    quantizer: ir.Node | None
    axis: int | None


def of(value: ir.Value | None) -> Stored | None:
    """The stored weight that a layer reads as `value`; None where it is computed, or has a scale for each block."""
    quantizer = pair.dequantize_of(value)
    stored = value if quantizer is None else quantizer.inputs[0]
    array = query.constant_array(stored)
    if value is None or stored is None or array is None:
        return None
    if quantizer is None:
        return Stored(value, array, stored, None, None)
    scale = query.constant_tensor(quantizer.inputs[1])
    if scale is None or query.attribute(quantizer, "block_size", 0):
        return None
    axis = query.attribute(quantizer, "axis", 1) % max(array.ndim, 1) if scale.size > 1 else None
    return Stored(value, array, stored, quantizer, axis)


def arranged(
    scope: walk.Scope, before: ir.Node, weight: Stored, array: np.ndarray, axis: int | None, names: build.Names
) -> ir.Value:
    """Store `array` as a weight with the parameters of `weight`.

    Args:
        scope: what holds `before`.
        before: the node that is to read it.
        weight: the weight whose numbers `array` has.
        array: codes or floats.
        axis: axis of the scales in `array`; None where there is one.
        names: of the model.
    """
    made = build.constant(scope, names.fresh(f"{weight.stored.name}_kernel"), array, weight.stored.dtype, before=before)
    if weight.quantizer is None:
        return made
    again = build.node(
        DEQUANTIZE,
        [made, *weight.quantizer.inputs[1:]],
        [names.fresh(f"{weight.value.name}_kernel")],
        {} if axis is None else {"axis": axis},
        dtype=weight.value.dtype,
        shape=made.shape,
        name=names.fresh(f"{weight.quantizer.name or weight.value.name}_kernel"),
    )
    scope.insert_before(before, again)
    return again.outputs[0]
