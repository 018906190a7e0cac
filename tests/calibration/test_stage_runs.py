"""Runs from stage to stage: the same tensors as from the inputs, from those that were kept."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxqat.calibration import stage_runs
from onnxqat.calibration.stage_runs import StageRuns
from onnxqat.runtime.session import Session

TEXT = """
<ir_version: 10, opset_import: ["" : 20]>
network (float[N, 4] x, bool c) => (float[N, 4] y)
{
  a = Relu(x)
  b = Exp(a)
  d = Neg(b)
  e = If(c) <then_branch = then () => (float[N, 4] t) { t = Add(a, d) },
             else_branch = otherwise () => (float[N, 4] o) { o = Sub(a, d) }>
  y = Abs(e)
}
"""
STAGES = (["a", "x"], ["b"], ["d"], ["e"])


def model() -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(TEXT))


def behind(number: int) -> list[str]:
    return [name for names in STAGES[number + 1 :] for name in names]


def batches() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal((3, 4)).astype(np.float32), "c": np.array(flag)} for flag in (True, False)]


@pytest.mark.parametrize("memory", [0, 48, 2**20])
def test_tensors_are_those_of_runs_from_the_inputs(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_runs, "MEMORY", memory)
    data, whole = batches(), Session(model(), optimize=False, tensors=["a", "b", "d", "e"])
    runs = StageRuns(len(data), optimize=False)
    for number, names in enumerate(STAGES):
        runs.begin(model(), names, behind(number))
        for index, feeds in enumerate(data):
            wanted = {**feeds, **whole.run(feeds, ["a", "b", "d", "e"])}
            found = runs.run(index, feeds)
            assert set(found) == set(names)
            for name in names:
                np.testing.assert_array_equal(found[name], wanted[name])


def test_a_stage_starts_from_what_was_kept() -> None:
    runs, data = StageRuns(1, optimize=False), batches()[:1]
    for number, names in enumerate(STAGES[:3]):
        runs.begin(model(), names, behind(number))
        if number:  # another input would give other tensors
            data[0]["x"] = data[0]["x"] + 1
        found = runs.run(0, data[0])
    wanted = -np.exp(np.maximum(batches()[0]["x"], 0))
    np.testing.assert_allclose(found["d"], wanted, rtol=1e-6)  # two implementations of exp


def test_what_no_later_stage_needs_is_forgotten() -> None:
    runs, data = StageRuns(1, optimize=False), batches()[:1]
    runs.begin(model(), ["a"], ["b", "d"])
    runs.run(0, data[0])
    runs.begin(model(), ["b"], ["d"])
    runs.run(0, data[0])
    runs.begin(model(), ["d"], [])
    assert set(runs._kept[0]) == {"b"}


def test_tensors_that_the_model_has_not_are_left_out() -> None:
    runs, data = StageRuns(1, optimize=False), batches()[:1]
    runs.begin(model(), ["a", "none"], [])
    assert set(runs.run(0, data[0])) == {"a"}
