"""Models in and out."""

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import onnx_ir as ir
import pytest

from onnxqat.errors import ModelError
from onnxqat.graph import io
from tests.passes.checks import compare_outputs, parse

TEXT = "g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}> { y = MatMul(x, w) }"


def test_the_kind_given_comes_back(tmp_path: Path) -> None:
    proto = parse(TEXT)
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    for source, kind in (
        (proto, onnx.ModelProto),
        (ir.from_proto(proto), ir.Model),
        (gs.import_onnx(proto), gs.Graph),
        (path, ir.Model),
        (str(path), ir.Model),
    ):
        model = io.load(source)
        assert isinstance(model, ir.Model)
        assert isinstance(io.like(source, model), kind)


@pytest.mark.parametrize("make", [lambda p: p, ir.from_proto, gs.import_onnx], ids=["proto", "ir", "gs"])
def test_the_callers_model_is_not_seen(make) -> None:
    source = make(parse(TEXT))
    model = io.load(source)
    model.graph[0].outputs[0].name = "z"
    model.graph.initializers.pop("w")
    again = io.load(source)
    assert [v.name for v in again.graph.outputs] == ["y"]
    assert "w" in again.graph.initializers


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def code_of(source) -> str:
    with pytest.raises(ModelError) as caught:
        io.load(source)
    return caught.value.code


def test_files_that_are_no_models(tmp_path: Path) -> None:
    assert code_of(tmp_path / "none.onnx") == "model-not-found"
    assert code_of(tmp_path) == "model-not-found"
    assert code_of(write(tmp_path / "a.onnx", b"")) == "model-empty"
    assert code_of(write(tmp_path / "b.onnx", b"PK\x03\x04 not a model")) == "model-not-onnx"
    assert code_of(write(tmp_path / "c.onnx", parse(TEXT).SerializeToString()[:-20])) == "model-not-onnx"
    assert code_of(onnx.ModelProto()) == "model-not-onnx"
    assert code_of(3) == "model-not-onnx"


def test_models_that_are_invalid() -> None:
    model = parse(TEXT)
    del model.opset_import[:]
    assert code_of(model) == "model-invalid"
    model = parse(TEXT)
    model.graph.node[0].input[0] = "ghost"
    assert code_of(model) == "model-invalid"
    model = parse(TEXT)
    model.graph.initializer[0].data_type = 99
    assert code_of(model) == "model-invalid"
    model = parse(TEXT)
    model.graph.sparse_initializer.add().values.name = "s"
    assert code_of(model) == "model-sparse-initializer"


def test_every_truncation_is_refused_or_valid(tmp_path: Path) -> None:
    content = parse(TEXT).SerializeToString()
    for length in range(len(content)):
        path = write(tmp_path / "cut.onnx", content[:length])
        try:
            io.load(path)
        except ModelError as error:
            assert error.code.startswith("model-")  # noqa: PT017 - a cut that leaves a valid model is fine


@pytest.mark.parametrize("external", [False, True])
def test_save_and_load(tmp_path: Path, external: bool) -> None:
    model = io.load(parse(TEXT))
    big = np.random.default_rng(0).normal(size=(2, 1000)).astype(np.float32)
    model.graph.initializers["w"].const_value = ir.tensor(big, name="w")
    model.graph.initializers["w"].shape = ir.Shape(big.shape)
    model.graph.outputs[0].shape = ir.Shape(["N", 1000])
    path = io.save(model, tmp_path / "m.onnx", external_data=external)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == (["m.onnx", "m.onnx.data"] if external else ["m.onnx"])
    compare_outputs(io.to_proto(model), io.to_proto(io.load(path)), 0.0)
    again = io.save(io.load(path), tmp_path / "again.onnx", external_data=external)
    assert external or again.read_bytes() == path.read_bytes()


def test_saving_over_a_model_that_is_mapped(tmp_path: Path) -> None:
    model = io.load(parse(TEXT))
    values = np.arange(2000, dtype=np.float32).reshape(2, 1000)
    model.graph.initializers["w"].const_value = ir.tensor(values, name="w")
    path = io.save(model, tmp_path / "m.onnx", external_data=True)
    mapped = io.load(path)
    io.save(mapped, path, external_data=True)
    np.testing.assert_array_equal(io.load(path).graph.initializers["w"].const_value.numpy(), values)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = io.save(io.load(parse(TEXT)), tmp_path / "m.onnx")
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelError) as caught:
        io.save(io.load(parse(TEXT.replace("MatMul", "Add").replace("N", "2"))), path)
    assert caught.value.code == "output-not-writable"
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        io.save(io.load(parse(TEXT)), tmp_path / "none" / "m.onnx")
    assert caught.value.code == "output-not-writable"


def test_real_models_come_back_whole(shared) -> None:
    for name in ("resnet20_cifar10_dynamo", "silero_vad", "mobilenetv1_025_vww"):
        source = onnx.load(shared / "data" / "models" / f"{name}.onnx")
        result = io.to_proto(io.load(source))
        assert [n.output for n in result.graph.node] == [n.output for n in source.graph.node]
        assert [n.metadata_props for n in result.graph.node] == [n.metadata_props for n in source.graph.node]
        assert list(result.graph.input) == list(source.graph.input)
