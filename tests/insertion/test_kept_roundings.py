"""A file that the trial of ranges has rounded in turn is not rounded again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnxqat
from onnxqat.calibration.observers import auto
from onnxqat.insertion import range_trial, rounded, rounding_choice
from onnxqat.placement.table_overrides import Overrides
from tests.insertion.test_rounding_choice import deep


@pytest.mark.parametrize(("others", "runs"), [(False, 1), (True, 2)])
def test_layers_are_rounded_in_turn_once_for_each_choice_of_ranges(
    others: bool, runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(deep(), tmp_path / "deep.onnx")
    compensate, in_turn = rounding_choice.compensate, []

    def watched(model: Any, placements: Any, data: Any, largest: Any, insert: Any, wanted: Any) -> Any:
        in_turn.append(insert is not None)
        return compensate(model, placements, data, largest, insert, wanted)

    def choose(calibrated: Any, data: Any, noise: Any) -> tuple[()]:
        observers = [o for o in calibrated.observers.values() if isinstance(o, auto.Observer)]
        for choice in ("percentile 99", "mse") if others else ("mse",):
            for observer in observers:
                observer.choice = choice
            assert noise() is not None
        return ()

    def made(name: str) -> list[bytes]:
        onnxqat.insert_qdq(
            tmp_path / "deep.onnx", data=data, overrides=Overrides(weight_bits=4), guard=False, equalize=False,
            output=tmp_path / name,
        )  # fmt: skip
        return [i.raw_data for i in onnx.load(tmp_path / name).graph.initializer]

    monkeypatch.setattr(rounding_choice, "compensate", watched)
    monkeypatch.setattr(range_trial, "choose", choose)
    data = {"x": np.random.default_rng(1).standard_normal((40, 24)).astype(np.float32)}
    kept = made("kept.onnx")
    assert sum(in_turn) == runs
    monkeypatch.setattr(rounded.KeptRoundings, "find", lambda self, resolved, wanted: None)
    assert made("again.onnx") == kept
    assert sum(in_turn) == runs + runs + 1
