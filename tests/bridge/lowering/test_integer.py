"""Integer convolutions and matrix products: bit for bit what onnxruntime computes.

Weights stay within 7 bits: processors without VNNI add pairs of larger products in 16 bits in onnxruntime.
"""

import numpy as np
import pytest
from onnx import TensorProto

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UnsupportedError
from tests.bridge import one_node, parity

RANDOM = np.random.default_rng(0)
KINDS = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8}
TYPES = [(np.uint8, np.int8), (np.uint8, np.uint8), (np.int8, np.int8)]
MS = "com.microsoft"


def codes(*shape, dtype=np.uint8, weight=False):
    low, high = {np.uint8: (0, 255), np.int8: (-128, 127)}[dtype]
    if weight:
        low, high = {np.uint8: (0, 64), np.int8: (-64, 64)}[dtype]
    return RANDOM.integers(low, high + 1, shape).astype(dtype)


def scalar(value, dtype=np.float32):
    return np.asarray(value, dtype)


def check(model, inputs) -> None:
    given = one_node.feeds(model, inputs)
    found, wanted = parity.run_module(to_torch(model), given)[0], parity.session(model).run(None, given)[0]
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    if wanted.dtype.kind == "f":
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    else:
        np.testing.assert_array_equal(found, wanted)
        assert len(np.unique(wanted)) > 3


SPATIAL = [
    {"pads": [1, 1, 1, 1]},
    {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
    {"strides": [2, 1], "auto_pad": "SAME_LOWER"},
    {"auto_pad": "VALID", "dilations": [2, 1]},
    {"group": 2, "pads": [0, 1, 2, 0]},
]


def convolution(x_type, w_type, per_channel, options, channels=6):
    per = (4,) if per_channel else ()
    return {
        "x": codes(2, channels, 7, 8, dtype=x_type),
        "x_scale": scalar(0.5),
        "x_zero": scalar(3, x_type),
        "w": codes(4, channels // options.get("group", 1), 3, 3, dtype=w_type, weight=True),
        "w_scale": RANDOM.choice([0.25, 0.5, 0.125], per).astype(np.float32) if per else scalar(0.25),
        "w_zero": np.full(per, 32 if w_type is np.uint8 else 0 if per_channel else 2, w_type),
        "y_scale": scalar(64.0),
        "y_zero": scalar(5, x_type),
        "b": RANDOM.integers(-500, 500, 4).astype(np.int32),
    }


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("options", SPATIAL)
@pytest.mark.parametrize("per_channel", [False, True])
def test_q_linear_conv(types, options, per_channel) -> None:
    # Scales that are powers of two make many sums fall on ties.
    inputs = convolution(*types, per_channel, options)
    constants = [name for name in inputs if name != "x"]
    check(one_node.make("QLinearConv", inputs, constants=constants, outputs={"y": KINDS[types[0]]}, **options), inputs)


def test_q_linear_conv_with_arbitrary_scales_and_many_channels() -> None:
    inputs = convolution(np.uint8, np.int8, True, {}, channels=200)
    inputs |= {"x_scale": scalar(0.0173), "w_scale": RANDOM.random(4).astype(np.float32), "y_scale": scalar(0.37)}
    check(one_node.make("QLinearConv", inputs, outputs={"y": TensorProto.UINT8}), inputs)


@pytest.mark.parametrize("options", SPATIAL[:3])
def test_q_linear_conv_with_channels_last(options) -> None:
    inputs = convolution(np.uint8, np.int8, False, options)
    inputs["x"] = np.ascontiguousarray(np.moveaxis(inputs["x"], 1, -1))
    outputs = {"y": TensorProto.UINT8}
    constants = [name for name in inputs if name != "x"]
    model = one_node.make(
        "QLinearConv", inputs, constants=constants, outputs=outputs, domain=MS, channels_last=1, **options
    )
    check(model, inputs)


@pytest.mark.parametrize("types", TYPES[:2])
@pytest.mark.parametrize("options", SPATIAL)
def test_conv_integer(types, options) -> None:
    full = convolution(*types, False, options)
    inputs = {"x": full["x"], "w": full["w"], "x_zero": full["x_zero"], "w_zero": full["w_zero"]}
    check(one_node.make("ConvInteger", inputs, outputs={"y": TensorProto.INT32}, **options), inputs)


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("shapes", [((3, 40), (40, 5)), ((2, 3, 300), (300, 5)), ((2, 1, 3, 7), (4, 7, 5))])
def test_mat_mul_integer(types, per_column, shapes) -> None:
    per_column = per_column and len(shapes[1]) == 2
    inputs = {
        "a": codes(*shapes[0], dtype=types[0]),
        "b": codes(*shapes[1], dtype=types[1], weight=True),
        "a_zero": scalar(7, types[0]),
        "b_zero": codes(5, dtype=types[1], weight=True) if per_column else scalar(3, types[1]),
    }
    model = one_node.make("MatMulInteger", inputs, outputs={"y": TensorProto.INT32}, constants=("b", "b_zero"))
    check(model, inputs)


def test_mat_mul_integer_with_a_zero_point_for_each_row() -> None:
    # onnxruntime refuses these; the operator's text has them.
    inputs = {"a": codes(3, 4), "b": codes(4, 5), "a_zero": codes(3)}
    model = one_node.make("MatMulInteger", inputs, outputs={"y": TensorProto.INT32})
    found = parity.run_module(to_torch(model), inputs)[0]
    wide = {name: array.astype(np.int32) for name, array in inputs.items()}
    np.testing.assert_array_equal(found, (wide["a"] - wide["a_zero"][:, None]) @ wide["b"])


def test_sums_wrap_around_as_int32() -> None:
    inputs = {"a": np.full((1, 70_000), 255, np.uint8), "b": np.full((70_000, 1), 255, np.uint8)}
    model = one_node.make("MatMulInteger", inputs, outputs={"y": TensorProto.INT32})
    found = parity.run_module(to_torch(model), inputs)[0]
    assert found.item() == (70_000 * 255 * 255 + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("per_column", [False, True])
def test_q_linear_mat_mul(types, per_column) -> None:
    inputs = {
        "a": codes(2, 6, 40, dtype=types[0]),
        "a_scale": scalar(0.5),
        "a_zero": scalar(9, types[0]),
        "b": codes(40, 5, dtype=types[1], weight=True),
        "b_scale": np.asarray([0.5, 0.25, 1.0, 2.0, 0.3], np.float32) if per_column else scalar(0.25),
        "b_zero": np.zeros(5, types[1]) if per_column else scalar(2, types[1]),
        "y_scale": scalar(128.0),
        "y_zero": scalar(11, types[0]),
    }
    constants = [name for name in inputs if name != "a"]
    check(one_node.make("QLinearMatMul", inputs, constants=constants, outputs={"y": KINDS[types[0]]}), inputs)


def gemm(a_type, b_type, per_column, transposed, output):
    inputs = {
        "a": codes(6, 40, dtype=a_type),
        "a_scale": scalar(0.5),
        "a_zero": scalar(9, a_type),
        "b": codes(*((5, 40) if transposed else (40, 5)), dtype=b_type, weight=True),
        "b_scale": np.asarray([0.5, 0.25, 1.0, 2.0, 0.3], np.float32) if per_column else scalar(0.25),
        "b_zero": np.zeros(5, b_type) if per_column else scalar(2, b_type),
        "c": RANDOM.integers(-500, 500, (1, 5)).astype(np.int32),
    }
    return inputs | ({"y_scale": scalar(128.0), "y_zero": scalar(11, a_type)} if output else {})


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("output", [False, True])
def test_q_gemm(types, per_column, transposed, output) -> None:
    inputs = gemm(*types, per_column, transposed, output)
    constants = [name for name in inputs if name != "a"]
    kind = KINDS[types[0]] if output else TensorProto.FLOAT
    model = one_node.make(
        "QGemm", inputs, constants=constants, outputs={"y": kind}, domain=MS, transB=transposed, alpha=1.5
    )
    check(model, inputs)


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("per_column", [False, True])
def test_mat_mul_integer_to_float(types, per_column) -> None:
    inputs = {
        "a": codes(2, 6, 40, dtype=types[0]),
        "b": codes(40, 5, dtype=types[1], weight=True),
        "a_scale": scalar(0.5),
        "b_scale": RANDOM.random(5).astype(np.float32) if per_column else scalar(0.25),
        "a_zero": scalar(9, types[0]),
        "b_zero": np.full(5, 1, types[1]) if per_column else scalar(2, types[1]),
        "bias": RANDOM.standard_normal(5).astype(np.float32),
    }
    check(one_node.make("MatMulIntegerToFloat", inputs, constants=("b", "b_zero"), domain=MS), inputs)


@pytest.mark.parametrize("type_", [np.uint8, np.int8])
@pytest.mark.parametrize("bias", [False, True])
def test_dynamic_quantize_mat_mul(type_, bias) -> None:
    inputs = {
        "a": RANDOM.standard_normal((2, 6, 40)).astype(np.float32),
        "b": codes(40, 5, dtype=type_, weight=True),
        "b_scale": RANDOM.random(5).astype(np.float32),
        "b_zero": np.full(5, 1, type_),
        "bias": RANDOM.standard_normal(5).astype(np.float32) if bias else None,
    }
    check(one_node.make("DynamicQuantizeMatMul", inputs, constants=("b", "b_zero"), domain=MS), inputs)


def test_other_widths_are_refused() -> None:
    inputs = {"a": np.ones((2, 2), np.int16), "b": np.ones((2, 2), np.int16)}
    model = one_node.make("MatMulIntegerToFloat", inputs | {"s": scalar(1.0), "t": scalar(1.0)}, domain=MS)
    with pytest.raises(UnsupportedError, match="codes of type INT16"):
        to_torch(model)
