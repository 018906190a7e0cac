"""What a file is: form, operators, work, constants, quantizers."""

from pathlib import Path

import onnx
import pytest
from onnx import parser

import onnxqat
from onnxqat.cli import main
from tests.validation import tiny

HEADER = '<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>'
DYNAMIC = f"""{HEADER} g (float[n] x) => (uint8[n] y) {{ y, s, z = DynamicQuantizeLinear (x) }}"""
INTEGER = f"""{HEADER} g (uint8[2, 3] x, uint8[3, 4] w) => (int32[2, 4] y) {{ y = MatMulInteger (x, w) }}"""


def test_a_float_model() -> None:
    model = tiny.write(None)
    before = model.SerializeToString()
    found = onnxqat.inspect(model)
    assert model.SerializeToString() == before
    assert (found.form, found.ir_version, found.opsets, found.scopes) == ("float", 8, {"ai.onnx": 17}, 0)
    assert [(p.name, p.dtype, p.shape) for p in found.inputs] == [("image", "float", ("N", 3, 12, 12))]
    assert [p.shape for p in found.outputs] == [("N", 7)]
    conv = next(o for o in found.operators if o.op_type == "Conv")
    # Two convolutions with 3 x 3 kernels and 8 outputs of 12 x 12 each, from 3 and from 8 channels.
    assert (conv.nodes, conv.quantized, conv.macs) == (2, 0, 8 * 144 * 9 * (3 + 8))
    assert next(o for o in found.operators if o.op_type == "Gemm").macs == 8 * 7
    assert found.macs == 8 * 144 * 9 * 11 + 56
    (constants,) = found.constants
    assert constants.dtype == "float"
    assert constants.elements == sum(onnx.numpy_helper.to_array(t).size for t in model.graph.initializer)
    assert constants.bytes == 4 * constants.elements
    assert found.grids == ()


def test_a_quantized_model() -> None:
    found = onnxqat.inspect(tiny.pair()[1])
    assert found.form == "QDQ, weights as float"
    assert {(g.role, g.grid, g.granularity, g.quantizers) for g in found.grids} >= {
        ("activation", "uint8", "tensor", 7),
        ("weight", "int8", "channel, axis 0", 3),
    }
    conv = next(o for o in found.operators if o.op_type == "Conv")
    assert (conv.nodes, conv.quantized) == (2, 2)
    assert not any(o.op_type.endswith("uantizeLinear") for o in found.operators)


QOPERATOR = f"""{HEADER} g (uint8[1, 2] x, float s, uint8 z, uint8[2, 2] w) => (uint8[1, 2] y) {{
    y = QLinearMatMul (x, s, z, w, s, z, s, z) }}"""
VENDOR = """<ir_version: 8, opset_import: ["" : 18, "trt" : 1]> g (float[2] x, float s) => (float[2] y) {
    q = trt.TRT_FP8QuantizeLinear (x, s) y = trt.TRT_FP8DequantizeLinear (q, s) }"""
UNKNOWN = VENDOR.replace("trt", "acme.ops")


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (DYNAMIC, "quantized while it runs"),
        (INTEGER, "integer operators"),
        (QOPERATOR, "QOperator"),
        (VENDOR, "quantizers of trt (NVIDIA ModelOpt, for TensorRT)"),
        (UNKNOWN, "quantizers of acme.ops"),
    ],
)
def test_other_forms(text: str, form: str) -> None:
    assert onnxqat.inspect(parser.parse_model(text)).form == form


def test_shapes_that_are_unknown_give_no_figure_and_inner_graphs_count() -> None:
    text = f"""{HEADER} g (float x0, bool c, float[a, b] x, float[b, d] w) => (float y, float[a, d] m) {{
        m = MatMul (x, w)
        y = If (c) <then_branch = t () => (float p) {{ p = Identity (x0) }},
                    else_branch = e () => (float q) {{ k = Constant <value_float = 2.0> () q = Mul (x0, k) }}>
    }}"""
    found = onnxqat.inspect(parser.parse_model(text))
    assert found.scopes == 2
    assert {o.op_type: o.nodes for o in found.operators} == {"Identity": 1, "If": 1, "MatMul": 1, "Mul": 1}
    assert [(c.dtype, c.tensors) for c in found.constants] == [("float", 1)]
    assert found.macs == 1  # every dimension is open and counts as 1


@pytest.mark.parametrize(("transposed", "size"), [(0, 3), (1, 1)])
def test_a_vector_into_gemm_is_a_row_or_transposed_a_column(transposed: int, size: int) -> None:
    text = f"{HEADER} g (float[3] x, float[{size}, 4] w) => (float[{3 if transposed else 1}, 4] y) {{ y = Gemm <transA = {transposed}> (x, w) }}"
    assert onnxqat.inspect(parser.parse_model(text)).macs == 12


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(tiny.pair()[1], tmp_path / "m.onnx")
    assert main.run(["inspect", str(tmp_path / "m.onnx")]) == 0
    text = capsys.readouterr().out
    assert "QDQ, weights as float" in text
    assert "onnxqat explain" in text
    (tmp_path / "bad.onnx").write_text("nothing")
    assert main.run(["inspect", str(tmp_path / "bad.onnx")]) == 2
