"""A range is searched for once for the same values, whoever asks, and anew for others."""

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from onnxqat.calibration.observers import _searched, create
from onnxqat.calibration.observers import entropy as by_entropy
from onnxqat.calibration.observers import mse as by_mse
from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.types import QType, TensorSpec

VALUES = np.random.default_rng(0).standard_t(3, 3000).astype(np.float32)


def seen(name: str, values: np.ndarray, *, bits: int = 8) -> BaseObserver:
    made = create(TensorSpec(QType.of(bits, signed=False), symmetric=False, observer=name))
    made.update(values)
    return made


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the observers that searched, in order; none has searched before."""
    found: list[str] = []
    monkeypatch.setattr(_searched, "KEPT", OrderedDict())
    for name, module, attribute in (("mse", by_mse, "_error"), ("entropy", by_entropy, "_search")):
        search = getattr(module.Observer, attribute)

        def counted(self: Any, name: str = name, search: Any = search) -> Any:
            found.append(name)
            return search(self)

        monkeypatch.setattr(module.Observer, attribute, counted)
    return found


@pytest.mark.parametrize("name", ["mse", "entropy"])
def test_the_same_values_are_searched_once(name: str, searches: list[str]) -> None:
    first, again = seen(name, VALUES), seen(name, VALUES.reshape(30, 100))
    assert first.range() == again.range()
    assert searches == [name]
    # What auto reads of its own histogram is that of an observer of the same name.
    auto = seen("auto", VALUES)
    assert auto.read_as(name).qparams().same(first.qparams())  # type: ignore[attr-defined]
    assert searches == [name]


@pytest.mark.parametrize("name", ["mse", "entropy"])
def test_other_values_and_grids_are_not_taken_for_them(name: str, searches: list[str]) -> None:
    moved = VALUES.copy()
    moved[np.argsort(VALUES)[1500]] *= 100  # the same smallest and largest, one value in another bin
    others = [seen(name, moved), seen(name, 2 * VALUES), seen(name, VALUES, bits=4)]
    wanted = [other.range() for other in others]
    assert len(searches) == len(others)
    _searched.KEPT.clear()
    seen(name, VALUES).range()
    assert [
        other.range() for other in (seen(name, moved), seen(name, 2 * VALUES), seen(name, VALUES, bits=4))
    ] == wanted


def test_few_are_kept(monkeypatch: pytest.MonkeyPatch, searches: list[str]) -> None:
    monkeypatch.setattr(_searched, "MOST", 2)
    for factor in (1, 2, 1, 3, 1, 2):
        seen("mse", factor * VALUES).range()
    assert len(_searched.KEPT) == 2
    assert len(searches) == 4  # that of 2 was forgotten for 3, and 1, which was asked for since, was not
