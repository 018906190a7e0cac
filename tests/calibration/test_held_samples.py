"""Held-out calibration samples: one in eight, and of few samples as many as tell something."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxqat.calibration import held_samples
from onnxqat.data.data import Data, open_data
from onnxqat.data.inputs import InputInfo, samples_of


def numbers(data: Data, size: int | None = None) -> tuple[list[int], list[int]]:
    """Values of the samples that are left and of those that are held out."""
    rest, held = held_samples.split(data)
    assert held_samples.can_tell(held) == (sum(map(samples_of, held)) >= held_samples.FEWEST)
    left, out = ([int(v) for feeds in part for v in feeds["x"][:, 0]] for part in (rest, held))
    assert not set(left) & set(out)
    return left, out


def column(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.float32)[:, None]


@pytest.mark.parametrize(
    ("count", "held", "left"),
    [(1, 0, 1), (7, 0, 7), (11, 1, 10), (12, 4, 8), (15, 5, 10), (16, 4, 12), (31, 4, 27), (32, 4, 28), (256, 16, 224)],
)
def test_samples_of_an_array(count: int, held: int, left: int) -> None:
    rest, out = numbers(open_data(column(count), [InputInfo("x", "float32", (None, 1))]))
    assert (len(out), len(rest)) == (held, left)


@pytest.mark.parametrize(
    ("prescribed", "count", "held", "left"),
    [(4, 12, 4, 8), (4, 16, 4, 12), (4, 64, 8, 56), (8, 24, 8, 16), (8, 23, 0, 16), (8, 64, 8, 56)],
)
def test_whole_batches_where_the_model_prescribes_them(prescribed: int, count: int, held: int, left: int) -> None:
    rest, out = numbers(open_data(column(count), [InputInfo("x", "float32", (prescribed, 1))]))
    assert (len(out), len(rest)) == (held, left)


@pytest.mark.parametrize(
    ("files", "each", "held"),
    [(11, 1, 1), (12, 1, 4), (16, 1, 4), (40, 1, 5), (2, 8, 0), (3, 4, 4), (6, 2, 4), (9, 4, 4)],
)
@pytest.mark.parametrize("prescribed", [None, 1])
def test_files_of_a_folder(files: int, each: int, held: int, prescribed: int | None, tmp_path: Path) -> None:
    for number in range(files):
        np.savez(tmp_path / f"{number:02}.npz", x=column(files * each)[number * each :][:each])
    left, out = numbers(open_data(tmp_path, [InputInfo("x", "float32", (prescribed, 1))]))
    assert (len(out), len(left)) == (held, files * each - held)


def test_batches_of_an_iterator_count_by_and_by() -> None:
    batches = [{"x": column(12)[n : n + 1]} for n in range(12)]
    left, out = numbers(open_data(lambda: iter(batches), [InputInfo("x", "float32", (None, 1))]))
    assert (len(left), len(out)) == (11, 1)
    left, out = numbers(open_data(batches, [InputInfo("x", "float32", (None, 1))]))
    assert (len(left), len(out)) == (8, 4)
