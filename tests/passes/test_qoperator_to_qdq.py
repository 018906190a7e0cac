"""qoperator-to-qdq: operators on codes become pairs with the same grids and codes."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from onnxqat.graph import io, qdq
from onnxqat.passes.qoperator_to_qdq import QoperatorToQdq
from onnxqat.training.finetune import finetune
from tests.passes.checks import check_pass, ort_run, parse

RANDOM = np.random.default_rng(0)
DATA = [{"x": RANDOM.standard_normal((1, 3, 6, 6)).astype(np.float32)} for _ in range(4)]
GRID = "float s = {0.5}, uint8 z = {7}"


def test_a_product_of_matrices() -> None:
    check_pass(
        QoperatorToQdq(),
        f"""g (float[2,2] x) => (uint8[2,2] y) <{GRID}, uint8[2,2] w = {{1, 2, 3, 4}}> {{
        q = QuantizeLinear(x, s, z) y = QLinearMatMul(q, s, z, w, s, z, s, z) }}""",
        f"""g (float[2,2] x) => (uint8[2,2] y) <{GRID}, uint8[2,2] w = {{1, 2, 3, 4}}> {{
        q = QuantizeLinear(x, s, z)
        q_DequantizeLinear_Output = DequantizeLinear(q, s, z) w_DequantizeLinear_Output = DequantizeLinear(w, s, z)
        y_float = MatMul(q_DequantizeLinear_Output, w_DequantizeLinear_Output) y = QuantizeLinear(y_float, s, z) }}""",
    )


def test_the_bias_gets_the_product_of_the_scales() -> None:
    check_pass(
        QoperatorToQdq(),
        f"""g (float[1,1,2,2] x) => (float[1,2,2,2] y)
        <{GRID}, int8[2,1,1,1] w = {{1, -2}}, float[2] ws = {{0.5, 0.25}}, int8[2] wz = {{0, 0}}, int32[2] b = {{4, -8}}> {{
        q = QuantizeLinear(x, s, z) c = QLinearConv(q, s, z, w, ws, wz, s, z, b) y = DequantizeLinear(c, s, z) }}""",
        f"""g (float[1,1,2,2] x) => (float[1,2,2,2] y)
        <{GRID}, int8[2,1,1,1] w = {{1, -2}}, float[2] ws = {{0.5, 0.25}}, int8[2] wz = {{0, 0}}, int32[2] b = {{4, -8}},
        float[2] b_scale = {{0.25, 0.125}}, int32[2] b_zero_point = {{0, 0}}> {{
        q = QuantizeLinear(x, s, z) q_DequantizeLinear_Output = DequantizeLinear(q, s, z)
        w_DequantizeLinear_Output = DequantizeLinear <axis = 0> (w, ws, wz)
        b_DequantizeLinear_Output = DequantizeLinear <axis = 0> (b, b_scale, b_zero_point)
        c_float = Conv(q_DequantizeLinear_Output, w_DequantizeLinear_Output, b_DequantizeLinear_Output)
        c = QuantizeLinear(c_float, s, z) y = DequantizeLinear(c, s, z) }}""",
    )


def test_data_movement_stands_between_pairs() -> None:
    check_pass(
        QoperatorToQdq(),
        f"""g (float[1,1,4,4] x) => (float[1,1,2,2] y) <{GRID}> {{
        q = QuantizeLinear(x, s, z) p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (q) y = DequantizeLinear(p, s, z) }}""",
        f"""g (float[1,1,4,4] x) => (float[1,1,2,2] y) <{GRID}> {{
        q = QuantizeLinear(x, s, z) q_DequantizeLinear_Output = DequantizeLinear(q, s, z)
        p_float = MaxPool <kernel_shape = [2,2], strides = [2,2]> (q_DequantizeLinear_Output)
        p = QuantizeLinear(p_float, s, z) y = DequantizeLinear(p, s, z) }}""",
    )


def test_a_pad_fills_with_the_float_of_its_code() -> None:
    check_pass(
        QoperatorToQdq(),
        f"""g (float[2] x) => (uint8[4] y) <{GRID}, int64[2] pads = {{1, 1}}> {{
        q = QuantizeLinear(x, s, z) y = Pad(q, pads) }}""",
        f"""g (float[2] x) => (uint8[4] y) <{GRID}, int64[2] pads = {{1, 1}}, uint8 y_fill = {{0}}> {{
        q = QuantizeLinear(x, s, z) q_DequantizeLinear_Output = DequantizeLinear(q, s, z)
        y_fill_DequantizeLinear_Output = DequantizeLinear(y_fill, s, z)
        y_float = Pad(q_DequantizeLinear_Output, pads, y_fill_DequantizeLinear_Output) y = QuantizeLinear(y_float, s, z) }}""",
    )


def test_codes_that_are_read_on_two_grids_become_two_constants() -> None:
    check_pass(
        QoperatorToQdq(),
        f"""g (float[2,2] x) => (uint8[2,2] y, uint8[2,2] v) <{GRID}, float t = {{0.25}}, uint8[2,2] w = {{1, 2, 3, 4}}> {{
        q = QuantizeLinear(x, s, z) y = QLinearMatMul(q, s, z, w, s, z, s, z) v = QLinearMatMul(q, s, z, w, t, z, s, z) }}""",
        f"""g (float[2,2] x) => (uint8[2,2] y, uint8[2,2] v)
        <{GRID}, float t = {{0.25}}, uint8[2,2] w = {{1, 2, 3, 4}}, uint8[2,2] w_1 = {{1, 2, 3, 4}}> {{
        q = QuantizeLinear(x, s, z)
        q_DequantizeLinear_Output = DequantizeLinear(q, s, z) w_DequantizeLinear_Output = DequantizeLinear(w, s, z)
        y_float = MatMul(q_DequantizeLinear_Output, w_DequantizeLinear_Output) y = QuantizeLinear(y_float, s, z)
        w_DequantizeLinear_Output_1 = DequantizeLinear(w_1, t, z)
        v_float = MatMul(q_DequantizeLinear_Output, w_DequantizeLinear_Output_1) v = QuantizeLinear(v_float, s, z) }}""",
    )


def test_without_codes_nothing_changes() -> None:
    check_pass(
        QoperatorToQdq(),
        f"""g (float[2,2] x) => (float[2,2] y) <{GRID}> {{
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Relu(d) }}""",
        None,
    )


def test_a_computed_scale_of_a_bias_is_left_alone() -> None:
    check_pass(
        QoperatorToQdq(),
        f"""g (float[1,1,2,2] x, float ws) => (uint8[1,1,2,2] y) <{GRID}, uint8[1,1,1,1] w = {{3}}, int32[1] b = {{5}}> {{
        q = QuantizeLinear(x, s, z) y = QLinearConv(q, s, z, w, ws, z, s, z, b) }}""",
        None,
    )


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """The calibration data, once."""

    def __init__(self) -> None:
        self.left = iter(DATA)

    def get_next(self) -> Any:
        """The next feeds; None at the end."""
        return next(self.left, None)


NETWORKS = {
    "residual": """c = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w, b) a = Add(c, x) m = Mul(a, c)
        t = Concat <axis = 1> (a, m) p = AveragePool <kernel_shape = [2,2], strides = [2,2]> (t)
        y = Transpose <perm = [0,2,3,1]> (p)""",
    "classifier": """c = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w, b) r = LeakyRelu <alpha = 0.1> (c)
        g = GlobalAveragePool(r) f = Flatten(g) h = Gemm <transB = 1> (f, v, b2) y = Sigmoid(h)""",
    "attention": """f = Reshape(x, shape) h = MatMul(f, u) k = Transpose <perm = [0,2,1]> (h) a = MatMul(h, k)
        s = Softmax <axis = -1> (a) y = MatMul(s, h)""",
}


def quantized(network: str, folder: Path, *, per_channel: bool) -> onnx.ModelProto:
    """What onnxruntime's quantizer writes for one of the networks, in QOperator form."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[1,3,6,6] x) => (float y)
    <int64[3] shape = {{1, 9, 12}}> {{ {NETWORKS[network]} }}"""
    model, random = onnx.parser.parse_model(text), np.random.default_rng(1)
    read = {name for node in model.graph.node for name in node.input}
    for name, shape in {"w": (3, 3, 3, 3), "b": (3,), "b2": (3,), "v": (3, 3), "u": (12, 6)}.items():
        if name in read:
            values = (random.standard_normal(shape) / 3).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, folder / "float.onnx")
    quantize_static(
        folder / "float.onnx",
        folder / "quantized.onnx",
        Reader(),
        quant_format=QuantFormat.QOperator,
        per_channel=per_channel,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        reduce_range=True,  # with which products saturate on no processor
    )
    return onnx.load(folder / "quantized.onnx")


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("per_channel", [True, False])
def test_files_of_onnxruntime(network: str, per_channel: bool, tmp_path: Path) -> None:
    model = quantized(network, tmp_path, per_channel=per_channel)
    result = QoperatorToQdq().run(model)
    assert [r.message for r in result.remarks if "stays as it is" in r.message] == []
    domains = {node.domain for node in result.model.graph.node if not node.op_type.endswith("quantizeLinear")}
    assert domains <= {"", "ai.onnx"}
    assert all(q.qparams.scale.size for q in qdq.quantizers(io.load(result.model)))
    for feeds in DATA:
        (wanted,), (found,) = (list(ort_run(m, feeds).values()) for m in (model, result.model))
        step = float(np.abs(wanted).max()) / 255
        assert np.abs(found - wanted).max() <= 1.01 * step  # one code, at a tie


def test_finetune_takes_the_file_and_gives_pairs(tmp_path: Path) -> None:
    model = quantized("classifier", tmp_path, per_channel=True)
    result = finetune(model, DATA, teacher=onnx.load(tmp_path / "float.onnx"), max_steps=2, device="cpu")
    assert any("written as QDQ" in remark.message for remark in result.remarks)
    assert "QLinearConv" not in {node.op_type for node in result.model.graph.node}
    assert np.isfinite(ort_run(result.model, DATA[0])["y"]).all()


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_a_selection_between_two_grids(kind: str) -> None:
    """The operands have grids of their own, of which the result's holds both."""
    grids = (
        f"float s = {{0.5}}, {kind} z = {{7}}, float t = {{0.25}}, {kind} u = {{3}}, float r = {{1}}, {kind} o = {{5}}"
    )
    text = f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[2,3] a, float[2,3] b, bool[2,3] c) => (float[2,3] y) <{grids}> {{
        q = QuantizeLinear(a, s, z) p = QuantizeLinear(b, t, u)"""
    check_pass(
        QoperatorToQdq(),
        text + " w = com.microsoft.QLinearWhere(c, q, s, z, p, t, u, r, o) y = DequantizeLinear(w, r, o) }",
        text
        + """ q_DequantizeLinear_Output = DequantizeLinear(q, s, z) p_DequantizeLinear_Output = DequantizeLinear(p, t, u)
        w_float = Where(c, q_DequantizeLinear_Output, p_DequantizeLinear_Output)
        w = QuantizeLinear(w_float, r, o) y = DequantizeLinear(w, r, o) }""",
    )


def test_a_scale_that_is_no_step_leaves_the_operator_as_it_is() -> None:
    text = f"""g (float[2,2] x) => (uint8[2,2] y) <{GRID}, uint8[2,2] w = {{1, 2, 3, 4}}, float n = {{0}}> {{
        q = QuantizeLinear(x, s, z) y = QLinearMatMul(q, s, z, w, n, z, s, z) }}"""
    result = QoperatorToQdq().run(parse(text))
    assert not result.changed
    assert [remark.message for remark in result.remarks] == ["QLinearMatMul stays as it is: its scale 'n' is 0"]


def test_scales_and_zero_points_of_different_numbers_leave_the_operator_as_it_is() -> None:
    text = f"""g (float[2,2] x) => (uint8[2,2] y) <{GRID}, uint8[2,2] w = {{1, 2, 3, 4}}, uint8[2] zs = {{0, 0}}> {{
        q = QuantizeLinear(x, s, z) y = QLinearMatMul(q, s, z, w, s, zs, s, z) }}"""
    result = QoperatorToQdq().run(parse(text))
    assert not result.changed
    assert [r.message for r in result.remarks] == ["QLinearMatMul stays as it is: it has 1 scales and 2 zero points"]


def test_a_zero_point_gets_the_shape_of_its_scale() -> None:
    text = f"""g (float[2,2] x) => (uint8[2,2] y) <{GRID}, uint8[2,2] w = {{1, 2, 3, 4}}, uint8[1] one = {{3}}> {{
        q = QuantizeLinear(x, s, z) y = QLinearMatMul(q, s, z, w, s, one, s, one) }}"""
    result = QoperatorToQdq().run(parse(text))
    made = result.model.graph.initializer
    assert {tuple(i.dims) for i in made if i.name.endswith("_shaped")} == {()}
