"""Candidates of the search for a range are tried many at a time, with the result of one at a time."""

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from onnxqat.calibration import weights
from onnxqat.calibration.observers import _search, _searched, create
from onnxqat.calibration.weights import weight_qparams
from onnxqat.types import QType, TensorSpec


def spec(bits: int, *, symmetric: bool, axis: int | None) -> TensorSpec:
    granularity = "tensor" if axis is None else "channel"
    return TensorSpec(
        QType.of(bits, signed=symmetric), symmetric=symmetric, granularity=granularity, axis=axis, observer="mse"
    )


@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [3, 8])
def test_the_same_range(monkeypatch: pytest.MonkeyPatch, bits: int, symmetric: bool, axis: int | None) -> None:
    values = np.random.default_rng(bits).standard_t(3, (5, 400)).astype(np.float32)
    wanted = spec(bits, symmetric=symmetric, axis=axis)

    def found() -> tuple[bytes, ...]:
        observer = create(wanted)
        observer.update(values)
        grids = observer.qparams(), weight_qparams(values, wanted)
        return tuple(part.tobytes() for grid in grids for part in (grid.scale, grid.zero_point))

    together = found()
    monkeypatch.setattr(_search, "_NUMBERS", 1)
    monkeypatch.setattr(_searched, "KEPT", OrderedDict())
    assert found() == together


def test_few_calls() -> None:
    """Each takes some hundred microseconds of Python, and a network has hundreds of tensors."""
    calls = []

    def error(qparams: object) -> np.ndarray:
        calls.append(qparams)
        return np.zeros(qparams.scale.shape)  # type: ignore[attr-defined]

    low, high = np.array([-1], np.float32), np.array([2], np.float32)
    _search.least_error_range(low, high, spec(8, symmetric=False, axis=None), error, 512)
    assert len(calls) < 20


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("length", [1, 2, 32, 600])
def test_candidates_that_cannot_win_are_left_out(
    bits: int, symmetric: bool, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(length).standard_t(3, (40, length)).astype(np.float32)
    rows[:5] = np.abs(rows[:5])
    rows[5, 0] *= 300
    search, counts = _search.least_error_range, [0, 0]

    def counted(bounded: bool) -> tuple[bytes, bytes]:
        def run(low: Any, high: Any, spec: Any, error: Any, size: int, least: Any = None) -> Any:
            def count(qparams: Any) -> Any:
                counts[bounded] += qparams.scale.size
                return error(qparams)

            return search(low, high, spec, count, size, least if bounded else None)

        monkeypatch.setattr(weights, "least_error_range", run)
        found = weight_qparams(rows, spec(bits, symmetric=symmetric, axis=0))
        return found.scale.tobytes(), found.zero_point.tobytes()

    assert counted(bounded=True) == counted(bounded=False)
    assert counts[1] <= (0.5 if bits == 8 and length == 600 else 1) * counts[0]
