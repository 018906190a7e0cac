"""Slice beyond the borders."""

import numpy as np
import pytest

from tests.bridge import one_node, parity


@pytest.mark.parametrize("step", [-1, -2, 1])
@pytest.mark.parametrize("start", [-9, -4, -1, 3, 9])
@pytest.mark.parametrize("end", [-9, -5, -3, 2, 9])
@pytest.mark.parametrize("of_shape", [False, True])
def test_slice_clamps_both_ends(start, end, step, of_shape) -> None:
    inputs = {"x": np.arange(8, dtype=np.float32).reshape(4, 2)}
    inputs |= {key: np.array([v]) for key, v in (("start", start), ("end", end), ("axis", 0), ("step", step))}
    model = one_node.make("Slice", inputs, constants=["start", "end", "axis", "step"], rank=2)
    if of_shape:  # numbers of shape arithmetic instead of a tensor
        from onnx import TensorProto, helper

        inputs["x"] = np.zeros((4, 3, 2, 1), np.float32)
        model.graph.node[0].input[0] = "shape"
        model.graph.node.insert(0, helper.make_node("Shape", ["x"], ["shape"]))
        model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "c", 2, 1]))
        model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.INT64, [None]))
    parity.check(model, one_node.feeds(model, inputs))
