"""Operators from codes to codes: bit for bit what onnxruntime computes, on values that are rich in ties."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UnsupportedError
from tests.bridge import one_node, parity

RANDOM = np.random.default_rng(0)
MS = "com.microsoft"
KINDS = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8}
TYPES = [np.uint8, np.int8]
# The scales in front are powers of two: many results fall on ties. Odd zero points tell where is rounded.
SCALES = [(0.5, 0.25, 1.0), (0.5, 0.5, 1.0), (0.25, 1.0, 8.0), (0.013, 0.027, 0.031), (0.1, 0.2, 0.3)]
ZEROS = [(0, 0, 0), (3, 5, 7), (10, 5, 6)]


def codes(dtype, *shape):
    info = np.iinfo(dtype)
    return RANDOM.integers(info.min, info.max + 1, shape).astype(dtype)


def every_code(dtype):
    info = np.iinfo(dtype)
    return np.arange(info.min, info.max + 1).astype(dtype)


def scale(value):
    return np.asarray(value, np.float32)


def zero(value, dtype):
    return None if value is None else np.asarray(value, dtype)


def check(op_type, inputs, dtype, data=("a", "b", "x"), fewest=4, **options):
    constants = [name for name in inputs if name.rstrip("0123456789") not in data]
    outputs = {"y": KINDS[dtype]}
    model = one_node.make(op_type, inputs, constants=constants, outputs=outputs, domain=MS, **options)
    given = one_node.feeds(model, inputs)
    found, wanted = parity.run_module(to_torch(model), given)[0], parity.session(model).run(None, given)[0]
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)
    assert len(np.unique(wanted)) >= fewest
    assert not list(to_torch(model).parameters())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
def test_sums_and_products(op_type, dtype, scales, zeros) -> None:
    inputs = {"a": codes(dtype, 5, 1000), "a_scale": scale(scales[0]), "a_zero": zero(zeros[0], dtype)}
    inputs |= {"b": codes(dtype, 1, 1000), "b_scale": scale(scales[1]), "b_zero": zero(zeros[1], dtype)}
    inputs |= {"y_scale": scale(scales[2]), "y_zero": zero(zeros[2], dtype)}
    check(op_type, inputs, dtype)


@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
def test_omitted_zero_points_are_zeros(op_type) -> None:
    # onnxruntime's type inference trips over them.
    inputs = {"a": codes(np.uint8, 99), "a_scale": scale(0.5), "a_zero": zero(0, np.uint8)}
    inputs |= {"b": codes(np.uint8, 99), "b_scale": scale(0.3), "b_zero": zero(0, np.uint8)}
    inputs |= {"y_scale": scale(2.0), "y_zero": zero(0, np.uint8)}
    omitted = {name: None if "zero" in name else array for name, array in inputs.items()}
    found = []
    for chosen in (inputs, omitted):
        model = one_node.make(op_type, chosen, outputs={"y": TensorProto.UINT8}, domain=MS)
        found += parity.run_module(to_torch(model), one_node.feeds(model, chosen))
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("y", [(1 / 256, 0), (1 / 128, 3), (0.0078, 1)])
@pytest.mark.parametrize("x", [(0.05, 0), (0.031, 100), (1.0, 7)])
def test_sigmoid(dtype, x, y) -> None:
    inputs = {"x": every_code(dtype), "x_scale": scale(x[0]), "x_zero": zero(x[1], dtype)}
    check("QLinearSigmoid", inputs | {"y_scale": scale(y[0]), "y_zero": zero(y[1], dtype)}, dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("y", [(0.125, 0), (0.5, 3), (0.07, 101)])
@pytest.mark.parametrize("x", [(0.25, 0), (0.031, 100)])
@pytest.mark.parametrize("alpha", [0.5, 0.01])
def test_leaky_relu(dtype, x, y, alpha) -> None:
    inputs = {"x": every_code(dtype), "x_scale": scale(x[0]), "x_zero": zero(x[1], dtype)}
    inputs |= {"y_scale": scale(y[0]), "y_zero": zero(y[1], dtype)}
    check("QLinearLeakyRelu", inputs, dtype, fewest=2, alpha=alpha)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("options", [{"axis": -1, "opset_": 13}, {"axis": 1, "opset_": 13}, {"axis": 1, "opset_": 11}])
@pytest.mark.parametrize("x_scale", [0.02, 0.2, 0.0001, 40.0])
@pytest.mark.parametrize("y_scale", [1 / 256, 0.01, 0.00392157, 0.0063])
def test_softmax(dtype, options, x_scale, y_scale) -> None:
    inputs = {"x": codes(dtype, 3, 4, 17), "x_scale": scale(x_scale), "x_zero": zero(3, dtype)}
    inputs |= {"y_scale": scale(y_scale), "y_zero": zero(np.iinfo(dtype).min, dtype)}
    outputs = {"y": KINDS[dtype]}
    constants = [name for name in inputs if name != "x"]
    model = one_node.make(
        "QLinearSoftmax", inputs, constants=constants, outputs=outputs, domain=MS, axis=options["axis"]
    )
    model.graph.node[0].attribute.add(name="opset", type=2, i=options["opset_"])
    given = {"x": inputs["x"]}
    found, wanted = parity.run_module(to_torch(model), given)[0], parity.session(model).run(None, given)[0]
    np.testing.assert_array_equal(found, wanted)
    assert wanted.any()


@pytest.mark.parametrize("dtype", TYPES)
def test_concat(dtype) -> None:
    inputs = {"y_scale": scale(0.5), "y_zero": zero(3, dtype)}
    for i, (step, offset) in enumerate([(0.25, 4), (0.5, 3), (0.07, 100)]):
        inputs |= {f"x{i}": codes(dtype, 2, 3 + i), f"scale{i}": scale(step), f"zero{i}": zero(offset, dtype)}
    check("QLinearConcat", inputs, dtype, axis=1, rank=2)


@pytest.mark.parametrize("dtype", TYPES)
def test_where(dtype) -> None:
    inputs = {"x": RANDOM.random((5, 300)) < 0.5}
    inputs |= {"a": codes(dtype, 5, 300), "a_scale": scale(0.25), "a_zero": zero(3, dtype)}
    inputs |= {"b": codes(dtype, 1, 300), "b_scale": scale(0.7), "b_zero": zero(5, dtype)}
    inputs |= {"y_scale": scale(0.5), "y_zero": zero(7, dtype)}
    check("QLinearWhere", inputs, dtype)


POOLS = [
    {"kernel_shape": [2, 2], "strides": [2, 2]},
    {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
    {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1},
    {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
]


def pooled(dtype, x_scale, y_scale, *shape):
    inputs = {"x": codes(dtype, *shape), "x_scale": scale(x_scale), "x_zero": zero(3, dtype)}
    return inputs | {"y_scale": scale(y_scale), "y_zero": zero(7, dtype)}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("options", POOLS)
@pytest.mark.parametrize("scales", [(0.5, 0.5), (0.25, 0.5), (0.013, 0.011)])
@pytest.mark.parametrize("last", [0, 1])
def test_average_pool(dtype, options, scales, last) -> None:
    shape = (2, 9, 10, 3) if last else (2, 3, 9, 10)
    check("QLinearAveragePool", pooled(dtype, *scales, *shape), dtype, channels_last=last, **options)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("scales", [(0.5, 0.03125), (0.013, 0.001)])
@pytest.mark.parametrize("last", [0, 1])
def test_global_average_pool(dtype, scales, last) -> None:
    shape = (2, 4, 8, 40) if last else (2, 40, 4, 8)
    inputs = pooled(dtype, *scales, *shape) | {"x_zero": zero(127 if dtype is np.uint8 else 0, dtype)}
    inputs["y_zero"] = zero(131 if dtype is np.uint8 else 3, dtype)
    check("QLinearGlobalAveragePool", inputs, dtype, channels_last=last)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("options", [POOLS[0], POOLS[1], POOLS[4], {"kernel_shape": [2, 2], "dilations": [2, 1]}])
def test_max_pool_with_channels_last(dtype, options) -> None:
    check("NhwcMaxPool", {"x": codes(dtype, 2, 9, 10, 3)}, dtype, **options)


def test_other_types_are_refused() -> None:
    inputs = {"a": np.ones(3, np.int16), "s": scale(1.0), "z": None, "b": np.ones(3, np.int16), "t": scale(1.0)}
    model = one_node.make("QLinearAdd", inputs | {"w": None, "u": scale(1.0)}, outputs={"y": 5}, domain=MS)
    with pytest.raises(UnsupportedError, match="INT16"):
        to_torch(model)


def test_codes_export_with_a_dynamic_batch() -> None:
    inputs = pooled(np.uint8, 0.5, 0.5, 2, 3, 8, 8)
    constants = [name for name in inputs if name != "x"]
    shapes = {"x": ("batch", 3, 8, 8)}
    outputs = {"y": TensorProto.UINT8}
    model = one_node.make(
        "QLinearAveragePool", inputs, constants=constants, outputs=outputs, domain=MS, shapes=shapes, **POOLS[1]
    )
    module = to_torch(model)
    given = (torch.from_numpy(inputs["x"]),)
    exported = torch.export.export(module, given, dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), strict=False)
    other = torch.from_numpy(codes(np.uint8, 5, 3, 8, 8))
    assert torch.equal(exported.module()(other), module(other))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("axis", [None, 1])
def test_quantize_and_dequantize_with_parameters_that_are_inputs(dtype, axis) -> None:
    many = () if axis is None else (4,)
    inputs = {"x": RANDOM.integers(-400, 400, (50, 4)).astype(np.float32) / 4}
    inputs |= {"step": np.full(many, 0.5, np.float32), "zero": np.full(many, 7, dtype)}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = one_node.make("QuantizeLinear", inputs, outputs={"y": kind}, domain=MS, axis=axis)
    found, wanted = parity.run_module(to_torch(model), inputs)[0], parity.session(model).run(None, inputs)[0]
    np.testing.assert_array_equal(found, wanted)
    inputs["x"] = wanted
    parity.check(one_node.make("DequantizeLinear", inputs, domain=MS, axis=axis), inputs)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
def test_a_pair_of_com_microsoft_is_a_fake_quantizer(dtype) -> None:
    step, offset = numpy_helper.from_array(scale(0.25), "step"), numpy_helper.from_array(np.asarray(3, dtype), "zero")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "step", "zero"], ["q"], domain=MS),
        helper.make_node("DequantizeLinear", ["q", "step", "zero"], ["y"], domain=MS),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 300)) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [step, offset])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    x = (RANDOM.integers(-4000, 4000, (2, 300)) / 8).astype(np.float32)
    module = parity.check(model, {"x": x})
    assert list(module.quantizers) == ["x"]
    module(torch.from_numpy(x)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in module.parameters())
