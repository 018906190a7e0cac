"""Training in float32 of files that hold half precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.insertion.insert import insert_qdq
from onnxqat.training.execution.in_float32 import Source, before_casts
from onnxqat.training.finetune import finetune
from onnxqat.training.reconstruction.reconstruct import reconstruct

X = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float16)


def half() -> onnx.ModelProto:
    """A product in float16."""
    weight = numpy_helper.from_array(np.random.default_rng(1).normal(size=(4, 3)).astype(np.float16), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["N", 3])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def vendors() -> onnx.ModelProto:
    """The same with quantizers in float16 and integer weights, as vendors' tools write it."""
    model = half()
    held = {
        "s": np.float16(0.02),
        "z": np.int8(0),
        "t": np.float16(0.015),
        "codes": np.int8(np.arange(12).reshape(4, 3) * 9 - 50),
    }
    del model.graph.initializer[:]
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in held.items())
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "d"),
        helper.make_node("DequantizeLinear", ["codes", "t", "z"], ["w"], "w"),
        helper.make_node("MatMul", ["d", "w"], ["y"], "product"),
    ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.checker.check_model(model, full_check=True)
    return model


def test_the_loss_is_computed_in_front_of_the_cast() -> None:
    """A gradient of 1e-9 is zero in float16."""
    module = to_torch(insert_qdq(half(), data={"x": X}).model)
    view = before_casts(module)
    x = torch.from_numpy(X)
    assert module(x).dtype == torch.float16
    assert view(x).dtype == torch.float32
    assert torch.equal(view(x).half(), module(x))
    for each, lost in ((module, True), (view, False)):
        module.zero_grad()
        (each(x).float().sum() * 1e-9).backward()
        gradient = next(p.grad for k, p in module.named_parameters() if module.parameter_names.get(k) == "w")
        assert gradient is not None
        assert bool(gradient.eq(0).all()) == lost


@pytest.mark.parametrize("kind", ["proto", "path"])
def test_a_vendors_file_in_half_precision_is_trained_in_float32(kind: str, tmp_path: Path) -> None:
    model = vendors()
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    result = finetune(
        model if kind == "proto" else path, {"x": X}, teacher=half(), max_steps=3, learning_rate=0.01, device="cpu",
        output=tmp_path / "t.onnx" if kind == "path" else None,
    )  # fmt: skip
    assert any("written, in float32" in remark.message for remark in result.remarks)
    tuned = result.model if kind == "proto" else onnx.load(result.model)
    assert [v.type.tensor_type.elem_type for v in (*tuned.graph.input, *tuned.graph.output)] == [
        TensorProto.FLOAT16
    ] * 2
    before, after = ({i.name: numpy_helper.to_array(i) for i in m.graph.initializer} for m in (model, tuned))
    assert after["s"].dtype == np.float32
    assert (before["codes"] != after["codes"]).any()


def test_reconstruction() -> None:
    quantized = insert_qdq(half(), data={"x": X}).model
    tuned = reconstruct(quantized, {"x": X}, limit=32, iterations=2, device="cpu").model
    assert tuned.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16


def test_a_file_in_float32_is_not_converted() -> None:
    model = insert_qdq(half(), data={"x": X}).model
    source = Source(model)
    assert source.target is model
    assert not source.remarks
