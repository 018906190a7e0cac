"""Outputs that are no tensors of numbers, and files that the default session refuses, come through validation."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxqat.deployment.handoff import handoff
from onnxqat.insertion.insert import insert_qdq
from onnxqat.metrics._closeness import Difference
from onnxqat.training.finetune import finetune
from onnxqat.validation.compare import parts
from onnxqat.validation.validate import validate

WORDS = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,2] x) => (float[1,2] y, string[1] label)
    <float[2,2] w = {1, 2, 4, 3}, string[2] words = {"cat", "dog"}> {
    y = MatMul(x, w) k = ArgMax<axis = 1, keepdims = 0>(y) label = Gather(words, k) }"""
SEQUENCE = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,2] x) => (float[1,2] y, seq(float[1,2]) all)
    <float[2,2] w = {1, 2, 4, 3}> { y = MatMul(x, w) all = SequenceConstruct(y, x) }"""
EMPTY = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,2] x) => (float[1,2] y, float[0,2] none)
    <float[2,2] w = {1, 2, 4, 3}, int64[1] zero = {0}> { y = MatMul(x, w) none = Slice(y, zero, zero, zero) }"""
DATA = {"x": np.float32([[0.5, -1]])}


@pytest.mark.parametrize("text", [WORDS, SEQUENCE])
def test_labels_and_sequences_come_through(text: str, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(text)
    quantized = insert_qdq(model, data=DATA).model
    assert validate(model, quantized, DATA).passed
    report = handoff(quantized, "onnxruntime-cpu", tmp_path / "bundle", data=DATA)
    assert report.passed
    assert [check.output for check in report.outputs] == ["y"]


def test_other_words_differ_by_one() -> None:
    one, two = np.asarray(["a", "b"], object), np.asarray(["a", "c"], object)
    meter = Difference()
    meter.update(one, two)
    assert (meter.max_abs, meter.elements) == (1.0, 2)
    assert parts(one, two) == 1.0
    assert parts(one, one) == 0.0


def test_outputs_without_values_are_equal_and_teach_nothing() -> None:
    model = onnx.parser.parse_model(EMPTY)
    quantized = insert_qdq(model, data=DATA).model
    report = validate(model, quantized, DATA)
    assert report.passed, report.failures
    assert all(np.isposinf(c.sqnr_db) for c in report.outputs if c.output == "none")
    tuned = finetune(quantized, [DATA], max_steps=2).model
    assert validate(model, tuned, DATA).passed


def test_signed_activations_that_the_default_session_refuses() -> None:
    """onnxruntime 1.32 moves the QuantizeLinear of opset 21 in front of Flatten and leaves its type in ``output_dtype``."""
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[n,2,4,4] x) => (float[n,3] y) {
        p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) f = Flatten(p) y = Gemm <transB = 1> (f, w) }"""
    model = onnx.parser.parse_model(text)
    weight = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    batches = [{"x": np.random.default_rng(2).normal(size=(4, 2, 4, 4)).astype(np.float32)}]
    quantized = insert_qdq(model, "tensorrt", data=batches).model
    try:
        onnxruntime.InferenceSession(quantized.SerializeToString(), providers=["CPUExecutionProvider"])
        refused = False
    except Exception as error:  # onnxruntime's errors have no common base class
        refused = "output_dtype INT8" in str(error)
    report = validate(model, quantized, batches, max_differing_top1=4)
    assert report.passed
    assert any("QDQPropagationTransformer" in remark.message for remark in report.remarks) is refused
