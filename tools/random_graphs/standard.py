"""Where onnxruntime departs from ONNX's own reference implementation, and the bridge keeps to it.

Each case has the words of the standard. A node counts only if the bridge gives what the reference evaluator of the
installed onnx computes for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

Arrays = Mapping[str, np.ndarray]

# "x_original = x_resized * (length_original - 1) / (length_resized - 1)", and in the reference implementation of onnx
# 1.23 (onnx/reference/ops/op_resize.py): "output_width = scale_factor * input_width",
# "x_ori = x * (input_width - 1) / (output_width - 1)": a width that is not rounded, as the text has it for "the target
# length on the axis x which can be a fractional number when it is calculated out of a scale factor". The standard's
# test_resize_downsample_scales_linear_align_corners has such numbers. onnxruntime rounds the width down first.
RESIZE_FRACTIONAL_LENGTH = "Resize: align_corners with a fractional length"


def _fractional_length(node: onnx.NodeProto, arrays: Arrays) -> bool:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if attributes.get("coordinate_transformation_mode") != b"align_corners" or len(node.input) < 3 or not node.input[2]:
        return False
    scales, sizes = arrays[node.input[2]], np.asarray(arrays[node.input[0]].shape)
    axes = attributes.get("axes", range(len(sizes)))
    return bool(scales.size) and any(float(sizes[a] * s) % 1 for a, s in zip(axes, scales, strict=True))


CASES: dict[str, tuple[str, Callable[[onnx.NodeProto, Arrays], bool]]] = {
    RESIZE_FRACTIONAL_LENGTH: ("Resize", _fractional_length),
}


def departure(model: onnx.ModelProto, given: Arrays, arrays: Arrays, found: list[np.ndarray]) -> str:
    """The case in which onnxruntime departs for a model of one node, or "".

    Args:
        model: of one node.
        given: its inputs.
        arrays: its inputs and constants.
        found: outputs of the bridge, compared with those of the reference.
    """
    node = model.graph.node[0]
    for title, (operator, applies) in CASES.items():
        if node.op_type == operator and applies(node, arrays):
            wanted = ReferenceEvaluator(model).run(None, dict(given))
            if all(np.allclose(f, w, 1e-4, 1e-5) for f, w in zip(found, wanted, strict=True)):
                return title
    return ""
