"""Parts of a data source behind its name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxqat.data import part
from onnxqat.data.data import open_data
from onnxqat.data.inputs import InputInfo
from onnxqat.errors import DataError, UsageError

INPUTS = (InputInfo("x", "float32", (None, 1)),)


@pytest.fixture
def numbered(tmp_path: Path) -> str:
    """Twenty samples, each its own number."""
    np.savez(tmp_path / "d.npz", x=np.arange(20, dtype=np.float32).reshape(20, 1))
    return str(tmp_path / "d.npz")


def read(source: str, limit: int | None = None) -> list[int]:
    return [int(v) for feeds in open_data(source, INPUTS, limit=limit) for v in feeds["x"].reshape(-1)]


def test_two_parts_are_the_whole(numbered: str) -> None:
    held, rest = read(f"{numbered}#every-5"), read(f"{numbered}#without-every-5")
    assert held == [4, 9, 14, 19]
    assert sorted(held + rest) == list(range(20))


def test_parts_follow_each_other_and_the_limit_comes_last(numbered: str) -> None:
    assert read(f"{numbered}#without-every-5#every-4") == [3, 8, 13, 18]
    assert read(f"{numbered}#without-every-5#every-4", limit=2) == [3, 8]


def test_a_file_of_that_name_is_the_whole(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz#every-2.npz", x=np.zeros((4, 1), np.float32))
    (tmp_path / "d#every-2").mkdir()
    np.savez(tmp_path / "d#every-2" / "a.npz", x=np.ones((3, 1), np.float32))
    assert read(str(tmp_path / "d#every-2")) == [1, 1, 1]


def test_all_or_nothing_is_refused(numbered: str) -> None:
    with pytest.raises(UsageError, match="all or nothing"):
        read(f"{numbered}#every-1")
    with pytest.raises(DataError, match="no such file"):
        read(f"{numbered}#some-5")
    assert part.parse("m:f#every-3") == ("m:f", (part.Part(3, others=False),))
