"""Models in float16, bfloat16 and double on the whole way: computed in float32, their inputs and outputs as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from onnxqat.cli import main as cli
from onnxqat.deployment.handoff import handoff
from onnxqat.errors import CheckError, ModelError
from onnxqat.graph import io
from onnxqat.insertion.insert import insert_qdq
from onnxqat.linting.lint import lint
from onnxqat.runtime.session import Session
from onnxqat.validation.profile import profile
from onnxqat.validation.validate import validate
from tests.repetitions import pairs

KINDS = {"float16": (TensorProto.FLOAT16, np.float16), "bfloat16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
         "double": (TensorProto.DOUBLE, np.float64)}  # fmt: skip


def classifier(kind: str, seed: int = 0) -> onnx.ModelProto:
    """Conv, Relu, mean and Gemm, all in `kind`."""
    number, dtype = KINDS[kind]
    rng = np.random.default_rng(seed)
    held = {"w": (8, 3, 3, 3), "b": (8,), "v": (8, 4), "c": (4,)}
    constants = [numpy_helper.from_array((rng.normal(size=s) / 3).astype(dtype), n) for n, s in held.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["h"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "v", "c"], ["y"], "head"),
    ]
    ports = (
        [helper.make_tensor_value_info("x", number, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("y", number, ["N", 4])],
    )
    graph = helper.make_graph(nodes, "g", *ports, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def images(dtype: Any, samples: int = 32) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(samples, 3, 8, 8)).astype(dtype)


def types_of(model: onnx.ModelProto) -> list[int]:
    return [v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)]


@pytest.mark.parametrize(("kind", "data"), pairs([*KINDS], [np.float16, np.float32, np.float64]))
def test_every_layer_is_quantized_and_the_interface_stays(kind: str, data: Any) -> None:
    model = classifier(kind)
    result = insert_qdq(model, data={"x": images(data)})
    assert result.quantizers == {"activation": 4, "weight": 2, "bias": 2}
    assert types_of(result.model) == types_of(model)
    assert any(f"computed in float32 instead of {kind}" in remark.message for remark in result.remarks)
    onnx.checker.check_model(result.model, full_check=True)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_model_that_was_quantized(kind: str) -> None:
    """The original runs in its own type where the runtime has kernels for it, in float32 where it has none."""
    model, data = classifier(kind), {"x": images(np.float32)}
    made = insert_qdq(model, data=data, keep_io_types=kind != "double").model
    report = validate(model, made, data)
    assert report.passed, report.failures
    assert min(o.sqnr_db for o in report.outputs) > 25  # 8 bits
    said = any("in float32" in remark.message for remark in report.remarks)
    assert said == (kind != "float16")


def test_without_keep_io_types() -> None:
    made = insert_qdq(classifier("float16"), data={"x": images(np.float32)}, keep_io_types=False).model
    assert types_of(made) == [TensorProto.FLOAT] * 2
    assert not any(node.op_type == "Cast" for node in made.graph.node)


def test_a_session_takes_what_the_runtime_does_not() -> None:
    feeds = {"x": images(np.float32, 2)}
    model = classifier("bfloat16")
    session = Session(io.load(model), optimize=True, tensors=["r"])
    assert session.converted
    assert session.inputs[0].dtype == "float32"
    found = session.run(feeds, ["r", "y"])
    assert found["r"].dtype == found["y"].dtype == np.float32
    double = Session(io.load(classifier("double")), optimize=True, tensors=["r"])
    assert double.converted
    assert double.run({"x": images(np.float64, 2)}, ["r"])["r"].dtype == np.float64
    assert not Session(io.load(classifier("float16")), optimize=True).converted


def test_a_session_does_not_hide_that_types_do_not_fit() -> None:
    model = classifier("double")
    weight = model.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).astype(np.float16), weight.name))
    with pytest.raises(ModelError, match="Type Error"):
        Session(io.load(model), optimize=True)


def test_commands_from_a_float16_file(tmp_path: Path) -> None:
    """insert-qdq, finetune, validate and handoff; the teacher and the reference are the original file."""
    paths = {name: str(tmp_path / name) for name in ("m.onnx", "q.onnx", "t.onnx", "data.npz", "bundle")}
    onnx.save(classifier("float16"), paths["m.onnx"])
    np.savez(paths["data.npz"], x=images(np.float32, 64))

    def run(*arguments: str) -> None:
        assert cli.run(arguments) == 0, arguments

    run("insert-qdq", paths["m.onnx"], "-c", paths["data.npz"], "-o", paths["q.onnx"])
    run("finetune", paths["q.onnx"], "--teacher", paths["m.onnx"], "--data", paths["data.npz"], "-o", paths["t.onnx"],
        "--epochs", "2", "--device", "cpu")  # fmt: skip
    run("validate", paths["m.onnx"], paths["t.onnx"], "--data", paths["data.npz"])
    run("handoff", paths["t.onnx"], "--backend", "onnxruntime-cpu", "-o", paths["bundle"], "--data", paths["data.npz"])
    assert types_of(onnx.load(paths["t.onnx"])) == [TensorProto.FLOAT16] * 2
    before, after = (
        ort.InferenceSession(paths[name]).run(None, {"x": images(np.float16)})[0] for name in ("m.onnx", "t.onnx")
    )
    assert after.dtype == np.float16
    assert np.abs(before - after).max() < 0.05 * np.abs(before).max()


@pytest.mark.parametrize("kind", ["bfloat16", "double"])
def test_profile_and_torch_tensors_as_data(kind: str) -> None:
    batches = [{"x": torch.from_numpy(images(np.float32, 4)).to(torch.bfloat16)}]
    made = insert_qdq(classifier(kind), data=batches).model
    for quantized in (made, insert_qdq(classifier(kind), data=batches, keep_io_types=False).model):
        report = profile(classifier(kind), quantized, batches)
        assert min(tensor.all_db for tensor in report.tensors) > 20  # 8 bits


def test_a_compiler_that_does_not_take_the_types_of_the_interface(tmp_path: Path) -> None:
    made = insert_qdq(classifier("bfloat16"), data={"x": images(np.float32)}).model
    onnx.save(made, tmp_path / "q.onnx")
    with pytest.raises(CheckError, match="onnxruntime-cpu refused the model") as caught:
        handoff(tmp_path / "q.onnx", "onnxruntime-cpu", tmp_path / "bundle", data={"x": images(np.float32)})
    assert "'x' is bfloat16 and 'y' is bfloat16: make the file with" in caught.value.hint


@pytest.mark.parametrize("kind", ["float16", "double"])
def test_nothing_is_missing_in_the_file_and_a_second_run_adds_nothing(kind: str) -> None:
    data = {"x": images(np.float32)}
    made = insert_qdq(classifier(kind), data=data)
    found = lint(made.model, "onnxruntime-cpu").findings
    assert {finding.code for finding in found} <= {"target-operator-float"}, found  # the Cast of the input
    again = insert_qdq(made.model, data=data, keep=True)
    assert again.quantizers == made.quantizers
    assert [node.op_type for node in again.model.graph.node] == [node.op_type for node in made.model.graph.node]
    names = [[value.name for value in m.graph.initializer] for m in (made.model, again.model)]
    assert sorted(names[0]) == sorted(names[1])
