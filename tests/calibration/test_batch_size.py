"""Batches of calibration data that fit into memory."""

import numpy as np
import onnx_ir as ir
from onnx import parser, shape_inference

from onnxqat.calibration.batch_size import BYTES, fitted
from onnxqat.data.data import Data, open_data
from onnxqat.data.inputs import of_graph

LARGE = """<ir_version: 10, opset_import: ["" : 21]>
g (float[N, L, 1] x, float[1, 1024] w) => (float[N, L, 1024] z) { y = MatMul(x, w)  z = Relu(y) }"""
ROW = 2 * 1024 + 1  # values of all tensors for each value of the input


def opened(text: str, samples: int, length: int, size: int = 32) -> tuple[ir.Model, Data]:
    model = ir.from_proto(shape_inference.infer_shapes(parser.parse_model(text)))
    weight = model.graph.inputs[1]
    weight.const_value = ir.tensor(np.zeros((1, 1024), np.float32))
    model.graph.register_initializer(weight)
    return model, open_data({"x": np.zeros((samples, length, 1), np.float32)}, of_graph(model.graph), batch_size=size)


def test_tensors_of_a_batch_fit() -> None:
    length = BYTES // (5 * ROW * 4)
    model, data = opened(LARGE, 12, length)
    found = fitted(data, model)
    assert found.sizes == [5, 5, 2]
    assert [len(feeds["x"]) for feeds in found] == [5, 5, 2]


def test_sizes_that_follow_from_values_are_those_of_a_run() -> None:
    length = BYTES // (5 * 2 * 4) - 2
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[N, 1] x) => (float[N, L] z) {
        m = ReduceMax <keepdims = 0> (x)  l = Cast <to = 7> (m)  s = Expand(l, one)  y = Expand(x, s)  z = Relu(y) }"""
    text = text.replace("(float[N, L] z)", "(float[N, L] z) <int64[1] one = {1}>")
    model = ir.from_proto(shape_inference.infer_shapes(parser.parse_model(text)))
    data = open_data({"x": np.full((12, 1), length, np.float32)}, of_graph(model.graph))
    assert fitted(data, model).sizes == [5, 5, 2]


def test_one_sample_that_is_too_large_is_a_batch() -> None:
    model, data = opened(LARGE, 2, BYTES // ROW)
    assert fitted(data, model).sizes == [1, 1]


def test_batches_that_fit_stay() -> None:
    model, data = opened(LARGE, 40, 8)
    assert fitted(data, model) is data
    model, data = opened(LARGE, 40, BYTES // (5 * ROW * 4), size=4)
    assert fitted(data, model) is data


def test_what_is_noticed_is_told_of_the_data() -> None:
    model, data = opened(LARGE, 12, BYTES // (5 * ROW * 4))
    list(fitted(data, model))
    assert any("identical" in str(remark) for remark in data.remarks)


def test_batches_that_cannot_be_chosen_stay() -> None:
    model, _ = opened(LARGE, 2, 2)
    batch = {"x": np.zeros((3, BYTES // ROW, 1), np.float32)}
    as_they_come = open_data([batch], of_graph(model.graph))
    read_once = open_data(iter([batch]), of_graph(model.graph))
    assert fitted(as_they_come, model) is as_they_come
    assert fitted(read_once, model) is read_once
    assert len(list(read_once)) == 1  # and nothing of it was read
    static, data = opened(LARGE.replace("N,", "2,"), 4, BYTES // ROW)
    assert fitted(data, static) is data
