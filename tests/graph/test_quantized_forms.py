"""Forms of quantization that have nothing to calibrate or to train are refused by name."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import quantize_dynamic

import onnxqat
from onnxqat.errors import ModelError
from onnxqat.graph import io, quantized_forms

DATA = [{"x": np.ones((2, 4), np.float32)}]
FLOAT = """<ir_version: 8, opset_import: ["" : 17]> g (float[2, 4] x) => (float[2, 2] y)
<float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> { y = MatMul (x, w) }"""
RELU = """<ir_version: 8, opset_import: ["" : 17]> g (float[2, 4] x) => (float[2, 4] y) { y = Relu (x) }"""
VENDOR = """<ir_version: 8, opset_import: ["" : 17, "onnx.brevitas" : 1]> g (float[2, 4] x, float s) => (float[2, 4] y) {
    q = onnx.brevitas.Quant (x, s, s, s) y = Relu (q) }"""


@pytest.fixture
def dynamic(tmp_path: Path) -> onnx.ModelProto:
    """What onnxruntime's quantize_dynamic writes."""
    onnx.save(onnx.parser.parse_model(FLOAT), tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "dynamic.onnx")
    return onnx.load(tmp_path / "dynamic.onnx")


def test_dynamic_quantization_is_not_quantized_twice(dynamic: onnx.ModelProto, tmp_path: Path) -> None:
    for command in (
        lambda: onnxqat.insert_qdq(dynamic, data=DATA),
        lambda: onnxqat.insert_qdq(dynamic, data=DATA, keep=True),
        lambda: onnxqat.finetune(dynamic, DATA, max_steps=1, device="cpu"),
        lambda: onnxqat.handoff(dynamic, "onnxruntime-cpu", tmp_path / "bundle"),
        lambda: onnxqat.validate(onnx.parser.parse_model(FLOAT), dynamic, DATA),
    ):
        with pytest.raises(ModelError, match=r"quantized dynamically \(DynamicQuantizeLinear") as caught:
            command()
        assert caught.value.code == "model-form"
        assert "FLOAT.onnx" in caught.value.hint


def test_quantizers_of_a_vendor_are_named_with_their_tool() -> None:
    model = onnx.parser.parse_model(VENDOR)
    with pytest.raises(ModelError, match=r"those of Brevitas \(onnx.brevitas.Quant\)"):
        onnxqat.insert_qdq(model, data=DATA)
    findings = {finding.code: finding.message for finding in onnxqat.lint(model).findings}
    assert findings["vendor-quantizers"] == "1 node of Quant, domain onnx.brevitas (Brevitas)"


def test_other_operators_are_no_quantizers() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "acme" : 1]> g (float[2, 4] x) => (float[2, 4] y) {
        y = acme.Quantile (x) }"""
    assert quantized_forms.form_of(io.load(onnx.parser.parse_model(text))) is None
    assert quantized_forms.form_of(io.load(onnx.parser.parse_model(FLOAT))) is None


def test_a_file_that_insert_qdq_left_in_float_says_so(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(RELU)
    left = onnxqat.insert_qdq(model, "onnxruntime-int4", data=DATA).model
    for command in (
        lambda: onnxqat.finetune(left, DATA, max_steps=1, device="cpu"),
        lambda: onnxqat.handoff(left, "onnxruntime-int4", tmp_path / "bundle"),
        lambda: onnxqat.validate(model, left, DATA),
    ):
        with pytest.raises(ModelError, match="in float: onnxruntime-int4 quantizes none of its operators") as caught:
            command()
        assert caught.value.code == "model-not-quantized"
    assert onnxqat.insert_qdq(left, data=DATA).model.graph.node  # it can be given another table
