"""derive-bias: biases lie on the grid of their node's accumulator."""

from typing import Literal

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxqat import numerics
from onnxqat.graph import io, qdq
from onnxqat.passes.derive_bias import DeriveBias
from onnxqat.types import BiasPlacement, QParams
from tests.passes.checks import check_pass, compare_outputs, in_function, in_if, parse

PAIRS = """x_q = QuantizeLinear(x, xs, xz) x_d = DequantizeLinear(x_q, xs, xz)
    w_q = QuantizeLinear<axis = 0>(w, ws, wz) w_d = DequantizeLinear<axis = 0>(w_q, ws, wz)"""
CONSTANTS = (
    "float xs = {0.5}, uint8 xz = {7}, float[2] ws = {0.25, 0.125}, int8[2] wz = {0, 0}, float[2,1,1,1] w = {1, 2}"
)
BIAS = "float[2] b = {0.3, -0.2}"
HEAD = "g (float[1,1,2,2] x) => (float[1,2,2,2] y)"
CONV = f'{HEAD} <{CONSTANTS}, {BIAS}> {{ {PAIRS} ["n"] y = Conv(x_d, w_d, b) }}'
STEP = np.float32([0.125, 0.0625])


def derive(*nodes: str, storage: Literal["int32", "float"] = "int32") -> DeriveBias:
    return DeriveBias([BiasPlacement(node, storage, "Conv bias") for node in nodes])


def arrays(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}


def snapped(values: list[float]) -> np.ndarray:
    return (np.round(np.float32(values) / STEP) * STEP).astype(np.float32)


def test_int32() -> None:
    check_pass(
        derive("n"),
        CONV,
        f"""{HEAD} <{CONSTANTS}, float[2] b_scale = {{0.125, 0.0625}}, int32[2] b_zero_point = {{0, 0}},
        int32[2] b_quantized = {{2, -3}}> {{ {PAIRS}
        b_DequantizeLinear_Output = DequantizeLinear<axis = 0>(b_quantized, b_scale, b_zero_point)
        y = Conv(x_d, w_d, b_DequantizeLinear_Output) }}""",
        atol=0.0625,
        inside_if="skip",
        inside_function="skip",
    )


def test_float_on_the_same_grid() -> None:
    result = check_pass(
        derive("n", storage="float"),
        CONV,
        f"{HEAD} <{CONSTANTS}, float[2] b = {{0.25, -0.1875}}> {{ {PAIRS} y = Conv(x_d, w_d, b) }}",
        atol=0.0625,
        inside_if="skip",
        inside_function="skip",
    )
    (node,) = [n for n in result.model.graph.node if n.op_type == "Conv"]
    assert {p.key: p.value for p in node.metadata_props} == {qdq.BIAS_GRID: "in0*in1"}
    tuned = io.load(result.model)
    ((found, activation, weight),) = qdq.snapped_biases(tuned, qdq.quantizers(tuned))
    assert (found.name, activation.tensor, weight.tensor) == ("n", "x", "w")


def test_both_storages_compute_the_same() -> None:
    stored, kept = (derive("n", storage=s).run(parse(CONV)).model for s in ("int32", "float"))  # type: ignore[arg-type]
    for seed in range(3):
        compare_outputs(stored, kept, atol=0.0, seed=seed)


def test_a_float_bias_on_the_grid_is_noted() -> None:
    on_grid = CONV.replace("{0.3, -0.2}", "{0.25, -0.1875}")
    result = derive("n", storage="float").run(parse(on_grid))
    assert result.changed
    np.testing.assert_array_equal(arrays(result.model)["b"], np.float32([0.25, -0.1875]))
    assert not derive("n", storage="float").run(result.model).changed


@pytest.mark.parametrize("storage", ["int32", "float"])
def test_a_bias_that_two_nodes_share(storage: Literal["int32", "float"]) -> None:
    text = CONV.replace("=> (float[1,2,2,2] y)", "=> (float[1,2,2,2] y, float[1,2,2,2] z)").replace(
        '["n"]', 'v_q = QuantizeLinear(w, xs, vz) v_d = DequantizeLinear(v_q, xs, vz) ["m"] z = Conv(x_d, v_d, b) ["n"]'
    )
    model = parse(text.replace(BIAS, BIAS + ", int8 vz = {0}"))
    result = derive("n", "m", storage=storage)
    found = result.run(model).model
    assert not result.run(found).changed
    biases = {n.name: n.input[2] for n in found.graph.node if n.op_type == "Conv"}
    assert biases["n"] != biases["m"]
    values = {}
    for quantizer in qdq.quantizers(io.load(found)):
        if quantizer.role == "bias":
            values[quantizer.tensor] = numerics.dequantize(quantizer.input.const_value.numpy(), quantizer.qparams)
            assert quantizer.derived_from is not None
    values |= arrays(found)
    np.testing.assert_array_equal(values[biases["n"]], snapped([0.3, -0.2]))
    np.testing.assert_array_equal(values[biases["m"]], np.float32([0.25, -0.25]))  # step 0.25


@pytest.mark.parametrize("storage", ["int32", "float"])
def test_a_bias_that_something_else_reads(storage: Literal["int32", "float"]) -> None:
    text = CONV.replace("=> (float[1,2,2,2] y)", "=> (float[1,2,2,2] y, float[2] z)").replace(
        '["n"]', 'z = Neg(b) ["n"]'
    )
    found = derive("n", storage=storage).run(parse(text)).model
    np.testing.assert_array_equal(arrays(found)["b"], np.float32([0.3, -0.2]))
    assert [n.input[0] for n in found.graph.node if n.op_type == "Neg"] == ["b"]


def test_a_constant_bias_that_leaves_the_graph() -> None:
    text = CONV.replace("=> (float[1,2,2,2] y)", "=> (float[1,2,2,2] y, float[2] b)")
    model = parse(text)
    found = derive("n", storage="float").run(model).model
    np.testing.assert_array_equal(arrays(found)["b"], np.float32([0.3, -0.2]))


@pytest.mark.parametrize(
    "text",
    [
        CONV.replace("Conv(x_d, w_d, b)", "Conv(x, w_d, b)"),
        CONV.replace("Conv(x_d, w_d, b)", "Conv(x_d, w, b)"),
        CONV.replace("Conv(x_d, w_d, b)", "Conv(x_d, w_d)"),
        CONV.replace(" x)", " x, float[2] c)").replace("Conv(x_d, w_d, b)", "Conv(x_d, w_d, c)"),
    ],
)
@pytest.mark.parametrize("storage", ["int32", "float"])
def test_left_alone(text: str, storage: Literal["int32", "float"]) -> None:
    check_pass(derive("n", storage=storage), text, None, inside_if="skip", inside_function="skip")


@pytest.mark.parametrize("wrap", [in_if, in_function])
@pytest.mark.parametrize("storage", ["int32", "float"])
def test_inner_scopes(wrap: object, storage: Literal["int32", "float"]) -> None:
    model = wrap(parse(CONV))  # type: ignore[operator]
    scopes = [model.functions[0]] if model.functions else [a.g for a in model.graph.node[-1].attribute]
    pass_ = derive(*(n.name for s in scopes for n in s.node if n.op_type == "Conv"), storage=storage)
    result = pass_.run(model)
    assert result.changed
    onnx.checker.check_model(result.model, full_check=True)
    assert not pass_.run(result.model).changed
    compare_outputs(model, result.model, atol=0.0625)


def test_gemm_per_tensor() -> None:
    text = """g (float[1,2] x) => (float[1,2] y) <float xs = {0.5}, int8 xz = {0}, float ws = {0.25}, int8 wz = {0},
        float[2,2] w = {1, 2, 3, 4}, float[2] b = {0.3, -0.2}> {
        x_q = QuantizeLinear(x, xs, xz) x_d = DequantizeLinear(x_q, xs, xz)
        w_q = QuantizeLinear(w, ws, wz) w_d = DequantizeLinear(w_q, ws, wz) ["n"] y = Gemm(x_d, w_d, b) }"""
    result = derive("n").run(parse(text))
    found = arrays(result.model)
    assert found["b_scale"] == np.float32(0.125)
    assert found["b_scale"].shape == ()
    assert found["b_quantized"].tolist() == [2, -2]


def test_accumulator_of_one_weight_channel() -> None:
    x = QParams(np.float32(0.5), np.int64(0), qdq.INT32)
    w = QParams(np.float32([0.25]), np.int64([0]), qdq.INT32, axis=0)
    assert qdq.accumulator(x, w, 3).scale.tolist() == [0.125] * 3


def test_a_noted_grid_that_is_nonsense_is_ignored() -> None:
    text = """g (float[1] x) => (float[1] y) <int8[1] c = {3}, float s = {0.5}, int8 z = {0}> {
        d = DequantizeLinear(c, s, z) y = Add(x, d) }"""
    for notes, grid in (
        ({}, (-128, 127)),
        ({qdq.QUANT_MIN: "-8", qdq.QUANT_MAX: "7"}, (-8, 7)),
        ({qdq.QUANT_MIN: "-8"}, (-128, 127)),
        ({qdq.QUANT_MIN: "x", qdq.QUANT_MAX: "7"}, (-128, 127)),
        ({qdq.QUANT_MIN: "7", qdq.QUANT_MAX: "-8"}, (-128, 127)),
        ({qdq.QUANT_MIN: "-1000", qdq.QUANT_MAX: "1000"}, (-128, 127)),
    ):
        model = parse(text)
        for key, value in notes.items():
            model.graph.node[0].metadata_props.add(key=key, value=value)
        (found,) = qdq.quantizers(io.load(model))
        assert (found.qparams.qtype.quant_min, found.qparams.qtype.quant_max) == grid
