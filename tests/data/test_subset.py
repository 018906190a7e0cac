"""A share of the samples, and the others: nothing twice, nothing lost, labels with their samples."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from onnxqat.data.data import open_data
from onnxqat.data.inputs import InputInfo
from onnxqat.errors import DataError

INPUT = (InputInfo("x", "float32", ("N", 1)),)


def labels(data: Any) -> list[int]:
    """All labels, each checked against its sample."""
    found: list[int] = []
    for feeds, given in data.labelled():
        np.testing.assert_array_equal(feeds["x"][:, 0], given)
        found += given.tolist()
    return found


def arrays(count: int) -> dict[str, np.ndarray]:
    numbers = np.arange(count)
    return {"x": numbers.astype(np.float32)[:, None], "labels": numbers}


def test_arrays_are_split_by_sample() -> None:
    rest, held = open_data(arrays(23), INPUT, batch_size=4).split(5)
    assert labels(held) == [4, 9, 14, 19]
    assert labels(rest) == [n for n in range(23) if n % 5 != 4]
    assert (rest.samples, held.samples) == (19, 4)
    picked = held.pick([2, 0])
    assert picked is not None
    assert picked[1] is not None
    assert picked[1].tolist() == [14, 4]


def test_limit_counts_samples_of_the_whole() -> None:
    rest, held = open_data(arrays(23), INPUT, batch_size=4, limit=10).split(5)
    assert labels(held) == [4, 9]
    assert labels(rest) == [0, 1, 2, 3, 5, 6, 7, 8]
    assert labels(rest.first(3)) == [0, 1, 2]


@pytest.mark.parametrize("kind", ["function", "folder"])
def test_batches_are_split_where_samples_have_no_number(kind: str, tmp_path: Path) -> None:
    def batches() -> Any:
        for start in range(0, 12, 2):
            numbers = np.arange(start, start + 2)
            yield {"x": numbers.astype(np.float32)[:, None]}, numbers

    for index, (feeds, numbers) in enumerate(batches()):
        np.savez(tmp_path / f"{index}.npz", labels=numbers, **feeds)
    rest, held = open_data(batches if kind == "function" else tmp_path, INPUT).split(3)
    assert labels(held) == [4, 5, 10, 11]
    assert labels(rest) == [0, 1, 2, 3, 6, 7, 8, 9]
    assert held.batches == (None if kind == "function" else 2)


def test_a_limit_takes_all_classes_of_a_sorted_folder(tmp_path: Path) -> None:
    for number in range(12):
        folder = tmp_path / str(number // 4)
        folder.mkdir(exist_ok=True)
        Image.fromarray(np.full((2, 2, 3), number, np.uint8)).save(folder / f"{number:02}.png")
    image = (InputInfo("x", "float32", ("N", 3, 2, 2)),)
    data = open_data(tmp_path, image, limit=6, batch_size=4)
    pairs = [(feeds["x"][:, 0, 0, 0] * 255, given) for feeds, given in data.labelled()]
    assert np.concatenate([given for _, given in pairs]).tolist() == [0, 0, 1, 1, 2, 2]
    np.testing.assert_allclose(np.concatenate([x for x, _ in pairs]), [0, 2, 4, 6, 8, 10], atol=1e-4)
    assert (data.batches, data.samples) == (2, 6)


@pytest.mark.parametrize("kind", ["arrays", "list", "folder"])
@pytest.mark.parametrize(("limit", "few"), [(None, [0, 5, 10, 15]), (12, [0, 3, 6, 9])])
def test_a_few_samples_are_from_all_over_the_data(kind: str, limit: int | None, few: list[int], tmp_path: Path) -> None:
    """Recordings and films lie in order: their first windows say nothing of the last."""
    singles = [({"x": np.full((1, 1), n, np.float32)}, np.array([n])) for n in range(20)]
    for n, (feeds, given) in enumerate(singles):
        np.savez(tmp_path / f"{n:02}.npz", labels=given, **feeds)
    data = open_data({"arrays": arrays(20), "list": singles, "folder": tmp_path}[kind], INPUT, limit=limit)
    assert labels(data.few(4)) == few


def test_a_few_samples_of_larger_batches_are_no_more_than_asked_for(tmp_path: Path) -> None:
    for n in range(0, 20, 4):
        np.savez(tmp_path / f"{n:02}.npz", x=np.arange(n, n + 4, dtype=np.float32)[:, None], labels=np.arange(n, n + 4))
    assert labels(open_data(tmp_path, INPUT).few(6)) == [0, 1, 2, 3, 8, 9]


def test_held_out_samples_of_a_sorted_folder_are_of_all_classes(tmp_path: Path) -> None:
    for number in range(24):
        folder = tmp_path / str(number // 8)
        folder.mkdir(exist_ok=True)
        Image.fromarray(np.full((2, 2, 3), number, np.uint8)).save(folder / f"{number:02}.png")
    _, held = open_data(tmp_path, (InputInfo("x", "float32", ("N", 3, 2, 2)),)).split(4)
    assert [given.tolist() for _, given in held.few(3).labelled()] == [[0, 1, 2]]


def test_what_can_be_read_once_is_refused() -> None:
    with pytest.raises(DataError, match="only once"):
        open_data(iter([np.zeros((2, 1), np.float32)]), INPUT).split(2)


def test_a_few_samples_fill_a_batch_that_the_model_prescribes() -> None:
    fixed = (InputInfo("x", "float32", (6, 1)),)
    assert labels(open_data(arrays(24), fixed).few(4)) == [0, 4, 8, 12, 16, 20]
