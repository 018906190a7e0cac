"""A quantized decoder whose cache holds codes between steps: one grid for what is read and what is left there."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxqat
from onnxqat.generation.generate import generate
from tests.generation import tiny_decoder

CACHE = {f"past_key_values.0.{kind}": f"present.0.{kind}" for kind in ("key", "value")}
TOKENS = 12


def quantized(backend: str) -> onnx.ModelProto:
    """The decoder with pairs, calibrated on a step whose cache holds other values than it adds."""
    old = np.random.default_rng(2).normal(size=(8, 1, 4, tiny_decoder.WIDTH)).astype(np.float32)
    data = {"input_ids": tiny_decoder.prompts(8), **dict.fromkeys(CACHE, old)}
    return onnxqat.insert_qdq(tiny_decoder.model(), backend=backend, data=data, fast=True).model


def quantizer(model: onnx.ModelProto, past: str) -> onnx.NodeProto:
    """The QuantizeLinear of an input of the cache."""
    return next(n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == past)


def dequantizer(model: onnx.ModelProto, present: str) -> onnx.NodeProto:
    """The DequantizeLinear that gives an output of the cache."""
    return next(n for n in model.graph.node if n.op_type == "DequantizeLinear" and present in n.output)


def with_codes(model: onnx.ModelProto) -> onnx.ModelProto:
    """`model` with a cache of codes: no Q behind its inputs, and no DQ in front of its outputs."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    for past, present in CACHE.items():
        first, last = quantizer(model, past), dequantizer(model, present)
        for info in (*model.graph.input, *model.graph.output):
            if info.name in (past, present):
                info.type.tensor_type.elem_type = types[first.input[2]]
        for node in model.graph.node:
            node.input[:] = [past if name == first.output[0] else name for name in node.input]
            node.input[:] = [f"{present}_float" if name == present else name for name in node.input]
        last.output[0] = f"{present}_float"
        codes = last.input[0]
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = [present if name == codes else name for name in names]
        model.graph.node.remove(first)
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "openvino-cpu", "qnn-htp", "rknn", "tengine-u8"])
def test_a_cache_is_read_on_the_grid_that_it_is_left_on(backend: str) -> None:
    model = quantized(backend)
    stored = {tensor.name: numpy_helper.to_array(tensor).tobytes() for tensor in model.graph.initializer}
    for past, present in CACHE.items():
        grids = [
            [stored[name] for name in node.input[1:]] for node in (quantizer(model, past), dequantizer(model, present))
        ]
        assert grids[0] == grids[1]


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "rknn"])
def test_codes_in_the_cache_change_no_token(backend: str) -> None:
    model = quantized(backend)
    data = {"input_ids": tiny_decoder.prompts(8)}
    found = generate(model, data, with_codes(model), tokens=TOKENS, optimize=False)
    assert found.same == (TOKENS,) * 8
    assert found.perplexity[0] == found.perplexity[1]
