"""A QDQ file records its float model, data and preprocessing, and later commands take them as defaults."""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import save
from PIL import Image

import onnxqat
from onnxqat.data.data import open_data
from onnxqat.data.inputs import InputInfo
from onnxqat.data.preprocess import Preprocess, line, parse
from onnxqat.data.recorded import Recorded, remarks_on_float
from onnxqat.graph import io, provenance
from onnxqat.graph.external import external_files
from onnxqat.graph.provenance import Provenance
from tests.validation import tiny

LINE = "rgb,resize=12x12,scale=1/255,mean=0.485:0.456:0.406,std=0.229:0.224:0.225,nchw"
IMAGE = InputInfo("image", "float32", ("N", 3, 12, 12))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a float model, a folder of images beside it, and the QDQ file made of both."""
    here = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        save(tiny.pair()[0], "model.onnx")
        Path("images").mkdir()
        for index in range(4):
            pixels = np.random.default_rng(index).integers(0, 256, (14, 14, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(f"images/{index}.png")
        onnxqat.insert_qdq("model.onnx", data="images", preprocess=LINE, output="model.qdq.onnx")
    return here


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files, which is the working folder."""
    monkeypatch.chdir(shutil.copytree(made, tmp_path, dirs_exist_ok=True))
    return tmp_path


def recorded() -> Recorded:
    return Recorded.of(io.load("model.qdq.onnx"), "model.qdq.onnx")


def messages(remarks: Any) -> str:
    return " | ".join(remark.message for remark in remarks)


def test_insert_records_where_the_file_comes_from(folder: Path) -> None:
    found = recorded().provenance
    assert (found.float_model, found.data) == ("model.onnx", "images")
    assert found.float_sha256 == hashlib.sha256(Path("model.onnx").read_bytes()).hexdigest()
    assert parse(found.preprocess) == parse(LINE)


def test_the_same_files_elsewhere_give_the_same_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    images, model, output = folder / "images", folder / "model.onnx", folder / "again.onnx"
    onnxqat.insert_qdq(model, data=images, preprocess=LINE, output=output)
    assert output.read_bytes() == (folder / "model.qdq.onnx").read_bytes()


def test_data_and_preprocessing_are_defaults_of_validate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")  # found beside the file, not in the working folder
    report = onnxqat.validate(folder / "model.onnx", folder / "model.qdq.onnx", use_torch=False)
    assert report.samples == 4
    text = messages(report.remarks)
    assert "no data were given" in text
    assert "images go in as the model's file records" in text


def test_training_keeps_the_record_and_takes_it_as_default(folder: Path) -> None:
    pytest.importorskip("torch")
    result = onnxqat.finetune("model.qdq.onnx", None, max_steps=1, output="tuned.onnx")
    assert "images go in as the model's file records" in messages(result.remarks)
    assert Recorded.of(io.load("tuned.onnx")).provenance == recorded().provenance


def test_another_preprocessing_is_named(folder: Path) -> None:
    opened = recorded().open("images", [IMAGE], preprocess=parse("scale=1/255"))
    assert "but the file was calibrated with" in messages(opened.remarks)
    assert messages(recorded().open("images", [IMAGE], preprocess=parse(LINE)).remarks) == ""


def test_other_samples_are_named(folder: Path) -> None:
    Image.fromarray(np.zeros((14, 14, 3), np.uint8)).save("images/2.png")
    assert "other samples now" in messages(recorded().open("images", [IMAGE], preprocess=parse(LINE)).remarks)
    arrays = {"image": np.zeros((2, 3, 12, 12), np.float32)}
    assert "calibrated on images, these data are others" in messages(recorded().open(arrays, [IMAGE]).remarks)


def test_another_float_model_is_named(folder: Path) -> None:
    model = io.load("model.qdq.onnx")
    assert remarks_on_float(model, "model.onnx") == []
    os.rename("model.onnx", "renamed.onnx")
    assert remarks_on_float(model, "renamed.onnx") == []
    changed = io.load("renamed.onnx")
    changed.doc_string = "changed"
    io.save(changed, "model.onnx")
    assert "model.onnx holds other bytes now" in messages(remarks_on_float(model, "model.onnx"))
    io.save(changed, "other.onnx")
    assert "was made from model.onnx, and other.onnx is another" in messages(remarks_on_float(model, "other.onnx"))


def test_the_float_model_is_found_by_name_and_content(folder: Path) -> None:
    model = io.load("model.qdq.onnx")
    assert provenance.find_float(model, "model.qdq.onnx") == Path("model.onnx")
    Path("model.onnx").write_bytes(b"something else")
    assert provenance.find_float(model, "model.qdq.onnx") is None


@pytest.mark.parametrize("name", ["../secret", "/etc", "a/b", "..", ".", "", "os:getcwd", "x\0y"])
def test_a_name_in_a_file_opens_nothing_elsewhere(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "here" / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert Recorded(Provenance(data=name)).data_or(None, []) is None


@pytest.mark.parametrize("text", ["resize=100000000", "nonsense=1", "mean=abc"])
def test_a_preprocessing_that_is_no_use_is_not_used(text: str, folder: Path) -> None:
    hostile = Recorded(Provenance(preprocess=text))
    opened = hostile.open("images", [IMAGE])
    assert "not usable" in messages(opened.remarks)
    assert opened.transform is not None
    assert opened.transform.steps.scale == 1 / 255


@pytest.mark.parametrize(
    "steps",
    [
        Preprocess(),
        parse(LINE),
        parse("letterbox=640,align=topleft,pad=0,bgr,nhwc,interpolation=bicubic"),
        Preprocess(scale=0.0171247538316637, mean=(123.675,), crop=(3, 4), resize="model"),
    ],
)
def test_a_line_is_read_back_as_it_was_written(steps: Preprocess) -> None:
    assert parse(line(steps)) == steps


def test_a_file_and_the_arrays_in_it_have_one_fingerprint(tmp_path: Path) -> None:
    x = InputInfo("x", "float32", ("N", 4))
    array = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)
    np.savez_compressed(tmp_path / "a.npz", x=array, labels=np.arange(10))
    one = open_data(tmp_path / "a.npz", [x]).identity()
    two = open_data({"x": array}, [x], limit=3).identity()
    assert (one.name, two.name) == ("a.npz", "")
    assert one.sha256 == two.sha256 != open_data({"x": array + 1}, [x]).identity().sha256


def test_external_data_count(tmp_path: Path) -> None:
    """Weights in a file of their own belong to the model, so another of them is another model."""
    model = io.load(tiny.pair()[0])
    io.save(model, tmp_path / "model.onnx", external_data=True)
    loaded = io.load(tmp_path / "model.onnx")
    before = provenance.float_model(tmp_path / "model.onnx", loaded)
    (data,) = external_files(loaded)
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    assert provenance.float_model(tmp_path / "model.onnx", loaded) != before


def test_no_record_for_random_data_and_models_in_memory() -> None:
    result = onnxqat.insert_qdq(ir.from_proto(tiny.pair()[0]), random_data=True)
    assert provenance.of(result.model) == Provenance()


def test_names_that_are_no_text_are_recorded_as_text() -> None:
    model = io.load(tiny.pair()[0])
    provenance.write(model, Provenance(float_model=os.fsdecode(b"\xff\xc3\xa9.onnx")))
    assert provenance.of(io.load(io.to_proto(model))).float_model == "\ufffd\u00e9.onnx"
