"""A sample far beyond the others is named with its number; masks and quiet samples are not."""

from pathlib import Path

import numpy as np
import pytest

from onnxqat.data.data import open_data
from onnxqat.data.inputs import InputInfo
from onnxqat.errors import DataError

X = InputInfo("x", "float32", ("N", 4))
RNG = np.random.default_rng(0)


def remarks(values: np.ndarray) -> list[str]:
    data = open_data({"x": values.astype(np.float32)}, [X], batch_size=7)
    for _ in range(2):
        list(data)
    return [remark.message for remark in data.remarks]


def test_a_damaged_sample_is_named() -> None:
    values = RNG.normal(size=(50, 4))
    values[23] *= 1e5
    (found,) = remarks(values)
    assert "input 'x' reaches" in found
    assert "in sample 23 of" in found


def test_several_are_counted() -> None:
    values = RNG.normal(size=(50, 4))
    values[[3, 30, 44]] = 1e9
    assert "in sample 3 and 2 more of" in remarks(values)[0]


@pytest.mark.parametrize("far", [-np.inf, -1e9])
def test_masks_that_most_samples_have_are_not(far: float) -> None:
    values = np.zeros((50, 4))
    values[::2, 3] = far
    assert remarks(values) == []


def test_loud_and_quiet_samples_are_not() -> None:
    assert remarks(RNG.normal(size=(50, 4)) * np.geomspace(1e-3, 1, 50)[:, None]) == []


def test_arrays_of_unlike_shapes_are_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "samples.npy"
    np.save(path, np.array([{"x": 1}], dtype=object))
    with pytest.raises(DataError) as caught:
        open_data(path, [X])
    assert "Python objects" in str(caught.value)
    assert "numpy.stack" in str(caught.value.hint)


def test_one_sample_without_its_axis_is_told_so() -> None:
    with pytest.raises(DataError) as caught:
        list(open_data([np.ones(4, np.float32)], [X]))
    assert "array[None]" in str(caught.value.hint)
