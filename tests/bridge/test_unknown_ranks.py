"""Operators behind a Reshape whose sizes, and how many there are, are known at run time only."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxqat.bridge.importing.importer import to_torch
from tests.bridge import one_node, parity

RANDOM = np.random.default_rng(0)
MS = "com.microsoft"


def codes(*shape, low=0, high=200, dtype=np.uint8):
    return RANDOM.integers(low, high, shape).astype(dtype)


def numbers(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def scalar(value, dtype=np.float32):
    return np.asarray(value, dtype)


WEIGHT = codes(4, 3, 3, 3, low=-60, high=60, dtype=np.int8)
CASES = {
    "MatMulInteger": {"a": codes(3, 4), "b": codes(4, 5), "a_zero": scalar(3, np.uint8), "b_zero": codes(5)},
    "ConvInteger": {"x": codes(2, 3, 6, 6), "w": codes(4, 3, 3, 3), "x_zero": scalar(3, np.uint8)},
    "QLinearMatMul": {
        "a": codes(2, 3, 4),
        "a_scale": scalar(0.5),
        "a_zero": scalar(3, np.uint8),
        "b": codes(4, 5, low=-60, high=60, dtype=np.int8),
        "b_scale": np.asarray([0.5, 0.25, 1.0, 2.0, 0.3], np.float32),
        "b_zero": np.zeros(5, np.int8),
        "y_scale": scalar(64.0),
        "y_zero": scalar(7, np.uint8),
    },
    "QLinearConv": {
        "x": codes(2, 3, 6, 6),
        "x_scale": scalar(0.5),
        "x_zero": scalar(3, np.uint8),
        "w": WEIGHT,
        "w_scale": np.asarray([0.5, 0.25, 1.0, 2.0], np.float32),
        "w_zero": np.zeros(4, np.int8),
        "y_scale": scalar(64.0),
        "y_zero": scalar(7, np.uint8),
        "bias": codes(4, dtype=np.int32),
    },
    "Hardmax": {"x": numbers(2, 3, 4)},
    f"{MS}.FusedMatMul": {"a": numbers(4, 3), "b": numbers(4, 5)},
    f"{MS}.QLinearSoftmax": {
        "x": codes(2, 3, 4),
        "x_scale": scalar(0.1),
        "x_zero": scalar(3, np.uint8),
        "y_scale": scalar(1 / 256),
        "y_zero": scalar(0, np.uint8),
    },
    f"{MS}.QLinearGlobalAveragePool": {
        "x": codes(2, 3, 4, 5),
        "x_scale": scalar(0.1),
        "x_zero": scalar(3, np.uint8),
        "y_scale": scalar(0.05),
        "y_zero": scalar(1, np.uint8),
    },
}
ATTRIBUTES = {
    f"{MS}.FusedMatMul": {"transA": 1, "alpha": 0.5},
    f"{MS}.QLinearSoftmax": {"axis": 1},
}
OPSETS = {"Hardmax": 11}  # of which the default flattens all axes but the first
RESHAPED = {
    "QLinearConv": ("x", "w"),
    "ConvInteger": ("x", "w"),
    "MatMulInteger": ("a", "b"),
    "QLinearMatMul": ("a", "b"),
}


def hidden(model: onnx.ModelProto, names) -> onnx.ModelProto:
    """`model` with inputs `names` behind a Reshape by inputs ``<name>_sizes``."""
    node = model.graph.node[0]
    for position, name in enumerate(names):
        model.graph.input.append(helper.make_tensor_value_info(f"{name}_sizes", TensorProto.INT64, [f"{name}_rank"]))
        reshape = helper.make_node("Reshape", [name, f"{name}_sizes"], [f"{name}_reshaped"])
        model.graph.node.insert(position, reshape)
    model.graph.node[-1].input[:] = [f"{n}_reshaped" if n in names else n for n in node.input]
    return model


@pytest.mark.parametrize("case", CASES)
def test_an_operator_behind_an_unknown_rank(case) -> None:
    inputs = CASES[case]
    domain, _, op_type = case.rpartition(".")
    names = RESHAPED.get(case, ("x" if "x" in inputs else "a",))
    first = inputs[names[0]]
    kind = TensorProto.INT32 if "Integer" in case else helper.np_dtype_to_tensor_dtype(first.dtype)
    constants = [n for n in inputs if n not in names and n not in ("x", "a", "b")]
    model = one_node.make(
        op_type,
        inputs,
        constants=constants,
        outputs={"y": kind},
        domain=domain,
        rank=None if domain else 4 if "Conv" in case else first.ndim,
        opset=OPSETS.get(case, 21),
        **ATTRIBUTES.get(case, {}),
    )
    if op_type == "QLinearSoftmax":
        model.graph.node[0].attribute.append(helper.make_attribute("opset", 13))
    given = one_node.feeds(model, inputs)
    given |= {f"{n}_sizes": np.asarray(inputs[n].shape) for n in names}
    model = hidden(model, names)
    found, wanted = parity.run_module(to_torch(model), given), parity.session(model).run(None, given)
    assert len(np.unique(wanted[0])) > 1
    parity.assert_close(found, wanted)


@pytest.mark.parametrize("vector", ["a", "b"])
def test_scales_of_a_product_with_a_vector(vector) -> None:
    # Scales lie along the axis of the matrix; onnxruntime has no such scales of rows.
    inputs = {
        "a": codes(3, 4) if vector == "b" else codes(4),
        "a_scale": np.asarray([0.5, 0.25, 1.0], np.float32) if vector == "b" else scalar(0.5),
        "a_zero": scalar(3, np.uint8),
        "b": codes(4) if vector == "b" else codes(4, 3),
        "b_scale": scalar(0.5) if vector == "b" else np.asarray([0.5, 0.25, 1.0], np.float32),
        "b_zero": scalar(2, np.uint8),
        "y_scale": scalar(64.0),
        "y_zero": scalar(7, np.uint8),
    }
    model = one_node.make("QLinearMatMul", inputs, outputs={"y": TensorProto.UINT8})
    found = parity.run_module(to_torch(model), one_node.feeds(model, inputs))[0]
    wide = {name: inputs[name].astype(np.int32) - int(inputs[f"{name}_zero"]) for name in ("a", "b")}
    scaled = (wide["a"] @ wide["b"]) * (inputs["a_scale"] * inputs["b_scale"] / inputs["y_scale"])
    np.testing.assert_array_equal(found, np.clip(np.rint(scaled) + 7, 0, 255))
