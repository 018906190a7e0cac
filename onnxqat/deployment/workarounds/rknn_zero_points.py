"""Grids that RKNN-Toolkit2 keeps: it stretches those whose zero point is in the middle of the storage type.

The toolkit (seen with 2.5.0) turns each pair into a range. Where the zero points of a tensor are all in the middle (0
of int8, 128 of uint8), it says ``zero_point are all zero, change qtype from 'asym' to 'sym'`` and takes
``max|range| / 127`` for the scale: of the range -128 to 127 steps that is 128/127 of the file's scale. Weights are
rounded again onto that grid, so that code 64 becomes 64.504, and 126 becomes 125.984; any other zero point leaves scale
and codes as they are. The same codes and factors are in the ``.rknn``.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxqat.graph.qdq import DEQUANTIZE, QUANTIZE

MIDDLE = {np.dtype(np.int8): 0, np.dtype(np.uint8): 128}
KEPT = np.float32(127 / 128)
"""Factor on a scale with which the toolkit arrives at the file's scale."""


def with_kept_grids(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of which the toolkit makes the grids that `model` has.

    Stored weights: the zero point of the first channel with a code to spare is one beside the middle, and so are its
    codes; the values are the same. Activations: the scale is 127/128 of what it was, which is for this compiler alone.
    Left alone: other storage types, scales that are computed, in blocks or not float32, and weights whose channels all
    use all codes. ::

        DequantizeLinear(w: int8 [2, 3] in -127..127, s: [2], z: [0, 0])      DequantizeLinear(w - [1, 0], s, [-1, 0])
        QuantizeLinear(x, 0.5, 128)                                           QuantizeLinear(x, 0.49609375, 128)

    Args:
        model: deploy form; it is not changed.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    stored = {tensor.name: tensor for tensor in made.graph.initializer}
    for node in made.graph.node:
        if node.op_type not in (QUANTIZE, DEQUANTIZE) or node.input[1] not in stored:
            continue
        scale, zero_point = _parameters(node, stored)
        if (
            zero_point is None
            or scale.dtype != np.float32
            or scale.ndim > 1
            or np.any(zero_point != MIDDLE[zero_point.dtype])
        ):
            continue
        if node.input[0] not in stored:
            _set(node, 1, scale * KEPT, made.graph)
        elif node.op_type == DEQUANTIZE:
            _shift(node, scale, zero_point, numpy_helper.to_array(stored[node.input[0]]), made.graph)
    return made


def _parameters(node: onnx.NodeProto, stored: dict[str, onnx.TensorProto]) -> tuple[np.ndarray, np.ndarray | None]:
    """Scale, and zero point in the storage type; None for a type that is left alone, or one that is computed."""
    scale = numpy_helper.to_array(stored[node.input[1]])
    if len(node.input) > 2 and node.input[2]:
        tensor = stored.get(node.input[2])
        zero_point = numpy_helper.to_array(tensor) if tensor is not None else None
    elif node.op_type == DEQUANTIZE and node.input[0] in stored:
        dtype = helper.tensor_dtype_to_np_dtype(stored[node.input[0]].data_type)
        zero_point = np.zeros(scale.shape, dtype)
    else:
        zero_point = None
    return scale, zero_point if zero_point is not None and zero_point.dtype in MIDDLE else None


def _shift(
    node: onnx.NodeProto, scale: np.ndarray, zero_point: np.ndarray, codes: np.ndarray, graph: onnx.GraphProto
) -> None:
    """One channel's codes and zero point moved by one, or those of all where there is one scale."""
    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
    whole = scale.size == 1
    rows = (codes if whole else np.moveaxis(codes, axis, 0)).reshape(scale.size, -1)
    limits = np.iinfo(codes.dtype)
    for step, spare in ((-1, rows.min(axis=1) > limits.min), (1, rows.max(axis=1) < limits.max)):
        if spare.any():
            channel = int(np.argmax(spare))
            moved = np.zeros((scale.size,), codes.dtype)
            moved[channel] += np.asarray(step).astype(codes.dtype)
            shape = [1] * codes.ndim if whole else np.where(np.arange(codes.ndim) == axis % codes.ndim, scale.size, 1)
            _set(node, 0, codes + moved.reshape(shape), graph)
            _set(node, 2, zero_point + moved.reshape(zero_point.shape), graph)
            return


def _set(node: onnx.NodeProto, position: int, array: np.ndarray, graph: onnx.GraphProto) -> None:
    """An initializer of its own for one input of `node`, since others may read the one that it had."""
    name = f"{node.output[0]}_kept_{('codes', 'scale', 'zero_point')[position]}"
    if position == len(node.input):
        node.input.append(name)
    node.input[position] = name
    graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
