"""Numbers of a Resize of images, as the integer function takes them."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onnxqat.graph import query
from onnxqat.integer_functions.functions.resize import COORDINATES


def attributes_of(node: ir.Node) -> dict[str, Any] | str:
    """Attributes of a call for a linear Resize, or the reason against one.

    Args:
        node: in the form of opset 11 and later: scales are its third input, sizes the fourth.
    """
    coordinates = query.attribute(node, "coordinate_transformation_mode", "half_pixel")
    plain = {"antialias": 0, "exclude_outside": 0, "keep_aspect_ratio_policy": "stretch", "axes": None}
    unusual = [name for name, usual in plain.items() if query.attribute(node, name, usual) != usual]
    if unusual or coordinates not in COORDINATES:
        return f"it has {unusual[0] if unusual else coordinates}"
    x = node.inputs[0]
    shape = None if x is None or x.shape is None else tuple(x.shape)
    lengths = [] if shape is None else [size for size in shape[2:] if isinstance(size, int)]
    if shape is None or len(shape) != 4 or len(lengths) < 2:
        return "the size of its image is unknown"
    scales, sizes = (_numbers(node, index) for index in (2, 3))
    if sizes and len(sizes) == 4:
        if list(sizes[:2]) != list(shape[:2]):
            return "it resizes more than the image"
        made = [int(size) for size in sizes[2:]]
        factors = [new / old for new, old in zip(made, lengths, strict=True)]
    elif scales and len(scales) == 4:
        if list(scales[:2]) != [1.0, 1.0]:
            return "it resizes more than the image"
        factors = [float(scale) for scale in scales[2:]]
        made = [int(old * factor) for old, factor in zip(lengths, factors, strict=True)]
    else:
        # Exporters take the batch of a computed size from the shape of a tensor; the image is known all the same.
        behind = node.outputs[0].shape
        dims = () if behind is None else tuple(behind)
        made = [size for size in dims[2:] if isinstance(size, int)]
        if len(dims) != 4 or len(made) < 2:
            return "its sizes are not constant"
        if dims[1] != shape[1] or (isinstance(dims[0], int) and isinstance(shape[0], int) and dims[0] != shape[0]):
            return "it resizes more than the image"
        factors = [new / old for new, old in zip(made, lengths, strict=True)]
    return {"coordinate_transformation_mode": coordinates, "lengths": lengths, "sizes": made, "scales": factors}


def _numbers(node: ir.Node, index: int) -> list[float]:
    array = query.constant_array(query.input_at(node, index))
    return [] if array is None else [float(number) for number in array.reshape(-1)]
