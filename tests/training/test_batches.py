"""Training data as batches."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from onnxqat.data.data import open_data
from onnxqat.data.inputs import InputInfo
from onnxqat.errors import DataError, InputError, QatError
from onnxqat.training.data import batches

ONE = [InputInfo("x", "float32", ("N", 3))]
FIXED = [InputInfo("x", "float32", (4, 3))]
X = np.arange(30, dtype=np.float32).reshape(10, 3)
Y = np.arange(10)


def make(data: Any, labels: Any = None, inputs: list[InputInfo] = ONE, **options: Any) -> batches.Batches:
    return batches.make(data, labels, inputs, **{"batch_size": 4, "seed": 0, **options})


def samples(source: batches.Batches, epoch: int = 0) -> list[float]:
    return [float(v) for b in source.epoch(epoch) for v in b.inputs["x"][:, 0]]


def test_arrays_are_shuffled_with_the_seed() -> None:
    source = make({"x": X}, Y)
    assert source.steps == 3
    assert samples(source) == samples(source) == samples(make(X, Y))
    assert samples(source) != samples(source, 1)
    assert samples(source) != samples(make(X, seed=1))
    assert sorted(samples(source)) == X[:, 0].tolist()
    for batch in source.epoch(0):
        assert batch.labels is not None
        assert batch.labels.dtype == torch.int64
        assert torch.equal(batch.inputs["x"][:, 0], 3.0 * batch.labels)


@pytest.mark.parametrize("key", ["labels", "label", "y"])
def test_labels_may_lie_beside_the_inputs(key: str) -> None:
    for source in (make({"x": X, key: Y}), make({"x": X, key: np.zeros(10, np.int64)}, Y)):
        for batch in source.epoch(0):
            assert batch.labels is not None
            assert torch.equal(batch.inputs["x"][:, 0], 3.0 * batch.labels)


def test_a_prescribed_batch_size_holds() -> None:
    source = make(X, inputs=FIXED, batch_size=7)
    assert source.steps == 2
    assert [len(b.inputs["x"]) for b in source.epoch(0)] == [4, 4]


def test_iterables_keep_their_order_and_labels() -> None:
    source = make([({"x": X[:4]}, Y[:4]), ({"x": X[4:]}, Y[4:])])
    assert source.steps == 2
    assert samples(source) == X[:, 0].tolist()
    assert make([X, X]).steps == 2
    assert samples(make(lambda: iter([{"x": torch.from_numpy(X)}])), 3) == X[:, 0].tolist()


def test_a_generator_serves_one_epoch() -> None:
    def generate() -> Iterator[Any]:
        yield {"x": X}

    source = make(generate())
    assert isinstance(source, batches.DataBatches)
    assert not source.repeatable
    assert len(samples(source)) == 10
    with pytest.raises(InputError, match="once"):
        samples(source, 1)


@pytest.mark.parametrize("kind", ["file", "folder"])
@pytest.mark.parametrize("pool", [2**30, 40])
def test_files_are_shuffled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: int, kind: str) -> None:
    monkeypatch.setattr(batches, "POOL_BYTES", pool)
    if kind == "file":
        np.savez(tmp_path / "d.npz", x=X, labels=Y)
    for index in range(0, len(X), 2) if kind == "folder" else ():
        np.savez(tmp_path / f"{index:02}.npz", x=X[index : index + 2], labels=Y[index : index + 2])
    source = make(tmp_path / "d.npz" if kind == "file" else tmp_path)
    assert sorted(samples(source)) == X[:, 0].tolist()
    assert samples(source) == samples(source) != X[:, 0].tolist()
    assert samples(source) != samples(source, 1)
    for batch in source.epoch(0):
        assert batch.labels is not None
        assert torch.equal(batch.inputs["x"][:, 0], 3.0 * batch.labels)


def test_a_sorted_folder_is_shuffled_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "POOL_BYTES", 1)
    for number in range(40):
        folder = tmp_path / str(number // 20)
        folder.mkdir(exist_ok=True)
        Image.fromarray(np.zeros((2, 2, 3), np.uint8)).save(folder / f"{number:02}.png")
    infos = [InputInfo("x", "float32", ("N", 3, 2, 2))]
    found = batches.make(tmp_path, None, infos, batch_size=10, seed=0)
    assert all(b.labels is not None and 0 < int(b.labels.sum()) < 10 for b in found.epoch(0))


def test_batches_of_different_shapes_are_shuffled_whole() -> None:
    infos = [InputInfo("x", "float32", ("N", "L"))]
    data = open_data([np.zeros((2, n), np.float32) for n in range(1, 9)], infos)
    shapes = [b.inputs["x"].shape[1] for b in batches.DataBatches(data, seed=0).epoch(0)]
    assert sorted(shapes) == list(range(1, 9)) != shapes


@pytest.mark.parametrize(
    ("data", "labels", "code"),
    [
        ({"x": X[:0]}, None, "data-missing"),
        ({"z": X}, None, "data-input-name"),
        ({"x": X}, Y[:5], "data-labels"),
        ({"x": X[:, :2]}, None, "data-shape"),
        ({"x": np.full((3, 3), np.nan, np.float32)}, None, "data-non-finite"),
        ([{"x": X}], Y, "option-invalid"),
        ([], None, "data-missing"),
        (5, None, "data-format"),
    ],
)
def test_bad_data(data: Any, labels: Any, code: str) -> None:
    with pytest.raises(InputError) as error:
        list(make(data, labels).epoch(0))
    assert error.value.code == code


def test_lengths_have_to_agree() -> None:
    infos = [*ONE, InputInfo("z", "float32", ("N",))]
    with pytest.raises(DataError) as error:
        make({"x": X, "z": np.zeros(9, np.float32)}, inputs=infos)
    assert error.value.code == "data-shape"


def test_a_limit_takes_the_first_samples(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=X, labels=Y)
    for data, labels in (({"x": X}, Y), (X, None), (tmp_path / "d.npz", None), (lambda: iter([X[:4], X[4:]]), None)):
        assert sorted(samples(make(data, labels, limit=5))) == X[:5, 0].tolist()
    with pytest.raises(QatError, match="at least 1"):
        make(X, limit=0)
    with pytest.raises(QatError, match="batches of your own"):
        make(make(X), limit=3)
