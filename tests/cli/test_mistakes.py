"""Typical mistakes of somebody new: each is answered with what to do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxqat.training.objective.losses import Loss
from tests.cli.test_bad_input import CALIBRATED, INSERT, refused

Run = Callable[..., Any]


@pytest.mark.parametrize(
    ("content", "says", "hint"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS", "git lfs pull"),
        (b"PK\x03\x04", "a zip archive", "onnxqat export"),
        (b"\x80\x02", "a Python pickle", "onnxqat export"),
    ],
)
def test_another_kind_of_file(content: bytes, says: str, hint: str, folder: Path, onnxqat: Run) -> None:
    Path("x.onnx").write_bytes(content)
    message = refused(onnxqat, "inspect", "x.onnx", code="model-not-onnx")
    assert says in message
    assert hint in message


@pytest.mark.parametrize(
    ("name", "hint"),
    [("modle.onnx", "did you mean model.onnx?"), (".", "one of: model.onnx"), ("none/m.onnx", "no folder none")],
)
def test_a_model_that_is_not_there(name: str, hint: str, folder: Path, onnxqat: Run) -> None:
    assert hint in refused(onnxqat, "inspect", name, code="model-not-found")


@pytest.mark.parametrize(
    ("name", "code", "hint"),
    [
        ("empty", "data-missing", "sub-folders are searched too"),
        ("texts", "data-missing", ".txt"),
        ("imagse", "data-not-found", "did you mean images?"),
        ("images/0.png", "data-format", "folder that holds the image"),
        ("small.npy", "data-shape", "--preprocess"),
        ("my_data:", "data-not-found", "package.module:function"),
    ],
)
def test_data(name: str, code: str, hint: str, folder: Path, onnxqat: Run) -> None:
    Path("empty").mkdir()
    Path("texts").mkdir()
    Path("texts/a.txt").write_text("a")
    np.save("small.npy", np.zeros((4, 3, 4, 4), np.float32))
    assert hint in refused(onnxqat, *INSERT, "--data", name, code=code)


def test_images_of_another_size(folder: Path, onnxqat: Run) -> None:
    message = refused(onnxqat, *INSERT, "-c", "images", "--preprocess", "resize=9x9", code="data-shape")
    assert "--preprocess resize=8x8" in message


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--preprocess", "resize=9"), "preprocessing is for folders of images"),
        (("--random-data",), "--random-data"),
        (("--backend", "tensorrt", "--bits", "8,16"), "--backend tensorrt-fp8"),
    ],
)
def test_options_that_do_not_go_together(options: tuple[str, ...], says: str, folder: Path, onnxqat: Run) -> None:
    assert says in refused(onnxqat, *CALIBRATED, *options, code="option-invalid")


def test_patterns_that_are_nearly_right(folder: Path, onnxqat: Run) -> None:
    assert "did you mean Conv?" in refused(onnxqat, *CALIBRATED, "--exclude-op", "conv", code="pattern-no-match")


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (np.full(8, 4, np.int64), "a label is 4; the output has the classes 0 to 3"),
        (np.full(8, -1, np.int64), "a label is -1"),
        (np.full(8, 0.5, np.float32), "labels of type float32"),
    ],
)
def test_labels_to_train_on(labels: Any, says: str, qdq: Path, onnxqat: Run) -> None:
    rng = np.random.default_rng(0)
    np.savez("labelled.npz", image=rng.random((8, 3, 8, 8), np.float32), labels=labels)
    message = refused(onnxqat, "finetune", "model.qdq.onnx", "--data", "labelled.npz", code="data-labels")
    assert says in message


def test_a_label_of_torch_that_says_nothing() -> None:
    import torch

    assert torch.isfinite(Loss()([torch.zeros(2, 4)], torch.tensor([-100, 3])))


def test_auto_writes_nothing_where_labels_are_wrong(folder: Path, onnxqat: Run) -> None:
    rng = np.random.default_rng(0)
    np.savez("labelled.npz", image=rng.random((24, 3, 8, 8), np.float32), labels=np.full(24, 9))
    refused(onnxqat, "auto", "model.onnx", "--data", "labelled.npz", code="data-labels")


@pytest.mark.parametrize("option", [("--seed", "-1"), ("--seed", "9" * 30), ("--weight-decay", "-1"), ("--ema", "2")])
def test_numbers_of_finetune(option: tuple[str, str], qdq: Path, onnxqat: Run) -> None:
    refused(onnxqat, "finetune", "model.qdq.onnx", "--data", "data.npz", *option, code="option-invalid")


def test_a_folder_that_is_no_black_box(qdq: Path, onnxqat: Run) -> None:
    assert "box.json" in refused(onnxqat, "replay", "images", "model.qdq.onnx", code="checkpoint-mismatch")


def test_labels_that_no_score_reads(qdq: Path, onnxqat: Run) -> None:
    Path("labels.csv").write_text("0.png,1\n")
    for command in (["validate", "model.onnx", qdq], ["profile", "model.onnx", qdq], ["auto", "model.onnx"]):
        message = refused(onnxqat, *command, "--data", "images", "--labels", "labels.csv", code="option-invalid")
        assert "no score is given that reads labels from labels.csv" in message
        assert "labels.csv of a folder of images" in message


@pytest.mark.parametrize("command", ["finetune", "reconstruct"])
def test_a_teacher_that_is_the_trained_file(command: str, qdq: Path, onnxqat: Run) -> None:
    message = refused(onnxqat, command, qdq, "--data", "data.npz", "--teacher", qdq, code="option-invalid")
    assert "is the file that is trained" in message


def test_a_teacher_with_other_outputs(qdq: Path, onnxqat: Run) -> None:
    teacher = onnx.load("model.onnx")
    teacher.graph.output.append(helper.make_tensor_value_info("f", onnx.TensorProto.FLOAT, ("N", 4)))
    teacher.graph.output[0].name = teacher.graph.node[-1].output[0] = "scores"
    onnx.save(teacher, "teacher.onnx")
    message = refused(
        onnxqat, "finetune", qdq, "--data", "data.npz", "--teacher", "teacher.onnx", code="option-invalid"
    )
    assert "outputs do not fit the model's: logits against scores, f" in message


def test_an_output_that_is_a_folder(qdq: Path, onnxqat: Run) -> None:
    for command in (CALIBRATED, ("finetune", qdq, "--data", "data.npz", "--max-steps", "1")):
        message = refused(onnxqat, *command, "-o", "images", code="output-not-writable")
        assert "name a file in that folder, such as images/model.onnx" in message


def test_labels_in_words(qdq: Path, onnxqat: Run) -> None:
    rng = np.random.default_rng(0)
    np.savez("words.npz", image=rng.random((8, 3, 8, 8), np.float32), labels=np.array(["cat", "dog"] * 4))
    validated = refused(onnxqat, "validate", "model.onnx", qdq, "--data", "words.npz", code="data-labels")
    trained = refused(onnxqat, "finetune", qdq, "--data", "words.npz", code="data-format")
    assert all("counted from 0" in message for message in (validated, trained))


def test_a_preprocessing_of_a_recipe_for_arrays(folder: Path, onnxqat: Run) -> None:
    words = ("recipes", "run", "classification", "model.onnx", "--data", "data.npz")
    assert "`onnxqat recipes show NAME`" in refused(onnxqat, *words, code="option-invalid")


@pytest.mark.parametrize(
    ("options", "says"), [([], "with --checkpoint-dir FOLDER"), (["--checkpoint-dir", "kept"], "with --resume")]
)
def test_an_interrupted_training_says_how_to_go_on(options: list[str], says: str, qdq: Path, onnxqat: Run) -> None:
    Path("stopped.py").write_text("def batches():\n    raise KeyboardInterrupt\n    yield\n")
    done = onnxqat("finetune", qdq, "--data", "stopped:batches", *options)
    assert done.status == 130
    assert says in done.err
