"""Ranges chosen at the outputs stay where they help samples that the weights were not rounded on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from onnxqat.calibration.observers import auto, create
from onnxqat.insertion import range_trial
from onnxqat.types import QType, Remark, TensorSpec

CHOSEN = "percentile 99.9"


def calibrated(bits: int = 8) -> Any:
    """One tensor whose range by the error at the outputs is a percentile."""
    observer = create(TensorSpec(QType.of(bits, signed=False), observer="auto"))
    assert isinstance(observer, auto.Observer)

    def choose_ranges(data: object) -> tuple[Remark, ...]:
        observer.choice = CHOSEN
        return (Remark("by the error at the outputs", (), "calibrate"),)

    return SimpleNamespace(observers={"x": observer}, choose_ranges=choose_ranges)


@pytest.mark.parametrize(
    ("noises", "choice"),
    [
        ({CHOSEN: 0.2, "mse": 0.1}, "mse"),
        ({CHOSEN: 0.1, "mse": 0.2}, CHOSEN),
        ({CHOSEN: 0.1, "mse": 0.098}, CHOSEN),
        ({CHOSEN: None, "mse": None}, CHOSEN),  # no layers are rounded in turn
    ],
)
def test_held_out_samples_decide(noises: dict[str, float | None], choice: str) -> None:
    model: Any = calibrated()
    data: Any = None
    observer = model.observers["x"]
    said = range_trial.choose(model, data, lambda: noises[observer.choice])
    assert observer.choice == choice
    assert ("held-out" in said[0].message) == (choice == "mse")


def test_ranges_of_few_bits_stay_as_chosen() -> None:
    model: Any = calibrated(bits=4)
    data: Any = None
    observer = model.observers["x"]
    range_trial.choose(model, data, lambda: {CHOSEN: 0.2, "mse": 0.1}[observer.choice])
    assert observer.choice == CHOSEN
