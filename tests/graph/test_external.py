"""External data of strangers: only regular files inside the model's folder, inside their bounds."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxqat.errors import ModelError
from onnxqat.graph import external, io
from tests.passes.checks import ort_run, parse

TEXT = "g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}> { y = MatMul(x, w) }"


def external_model(folder: Path, **entries: str) -> Path:
    """TEXT with its weight in ``w.bin``; `entries` override location, offset and length."""
    model = parse(TEXT)
    tensor = model.graph.initializer[0]
    (folder / "w.bin").write_bytes(np.asarray([1, 2, 3, 4], np.float32).tobytes())
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "w.bin", "offset": "0", "length": "16", **entries}.items():
        tensor.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_data_inside_the_folder_is_read(tmp_path: Path) -> None:
    model = io.load(external_model(tmp_path))
    np.testing.assert_array_equal(model.graph.initializers["w"].const_value.numpy(), [[1, 2], [3, 4]])
    result = ort_run(io.to_proto(model), {"x": np.eye(2, dtype=np.float32)})
    np.testing.assert_array_equal(result["y"], [[1, 2], [3, 4]])


def test_data_in_a_folder_below_is_read(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    path = external_model(tmp_path, location="below/w.bin")
    (tmp_path / "w.bin").rename(tmp_path / "below" / "w.bin")
    assert io.load(path).graph.initializers["w"].const_value.numpy().sum() == 10


HOSTILE = {
    "absolute": {"location": "/etc/passwd"},
    "parent": {"location": "../secret.bin"},
    "parent inside": {"location": "below/../../secret.bin"},
    "empty": {"location": ""},
    "drive": {"location": "C:w.bin"},
    "backslash": {"location": "..\\secret.bin"},
    "missing": {"location": "nothing.bin"},
    "folder": {"location": "."},
    "negative offset": {"offset": "-4"},
    "offset beyond": {"offset": "4"},
    "length beyond": {"length": "17"},
    "too short": {"length": "12"},
    "no number": {"offset": "zero"},
    "huge": {"offset": str(2**63), "length": str(2**63)},
}


def test_more_bytes_than_the_shape_takes(tmp_path: Path) -> None:
    path = external_model(tmp_path, length="20")
    (tmp_path / "w.bin").write_bytes(bytes(32))
    with pytest.raises(ModelError, match="has 20 bytes, and its shape and type take 16"):
        io.load(path)


@pytest.mark.parametrize("entries", HOSTILE.values(), ids=HOSTILE)
def test_hostile_locations_are_refused(tmp_path: Path, entries: dict[str, str]) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(b"0" * 64)
    with pytest.raises(ModelError) as caught:
        io.load(external_model(folder, **entries))
    assert caught.value.code == "model-external-data"


@pytest.mark.parametrize("kind", ["symlink", "symlinked folder", "hard link"])
def test_links_are_refused(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(b"0" * 64)
    location = "below/secret.bin" if kind == "symlinked folder" else "link.bin"
    path = external_model(folder, location=location)
    if kind == "symlink":
        (folder / "link.bin").symlink_to("w.bin")
    elif kind == "hard link":
        os.link(tmp_path / "secret.bin", folder / "link.bin")
    else:
        (folder / "below").symlink_to(tmp_path)
    with pytest.raises(ModelError) as caught:
        io.load(path)
    assert caught.value.code == "model-external-data"


def test_a_model_in_memory_has_no_folder(tmp_path: Path) -> None:
    model = onnx.load(external_model(tmp_path), load_external_data=False)
    assert external.has_external_data(model)
    with pytest.raises(ModelError, match="pass its path"):
        io.load(model)


def test_tensors_of_subgraphs_and_functions_are_checked(tmp_path: Path) -> None:
    inner = parse(TEXT)
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="/etc/passwd")
    inner.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["c"], value=tensor))
    path = tmp_path / "model.onnx"
    path.write_bytes(inner.SerializeToString())
    with pytest.raises(ModelError) as caught:
        io.load(path)
    assert caught.value.code == "model-external-data"
