"""How far the moments of few samples can be trusted is told by places that are held out."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxqat
from onnxqat.calibration import gptq, moments
from onnxqat.calibration.gptq import Solver, best_damping, best_regularization
from onnxqat.placement.table_overrides import Overrides
from tests.passes.checks import ort_run

INPUTS = 256
TEXT = f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[N, {INPUTS}] x) => (float[N, 32] y) {{ [layer] y = Gemm (x, w, b) }}"""


def mixed(count: int, seed: int) -> np.ndarray:
    """Inputs of which some go together, as those behind a pool do."""
    rng, ways = np.random.default_rng(seed), np.random.default_rng(7).standard_normal((INPUTS, INPUTS))
    powers = 1 / np.arange(1, INPUTS + 1)
    return np.asarray((rng.standard_normal((count, INPUTS)) * np.sqrt(powers)) @ ways, np.float32)


def network() -> onnx.ModelProto:
    model, rng = onnx.parser.parse_model(TEXT), np.random.default_rng(0)
    for name, shape in (("w", (INPUTS, 32)), ("b", (32,))):
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        )
    return model


def second(inputs: np.ndarray) -> np.ndarray:
    return inputs.T.astype(np.float64) @ inputs / len(inputs)


@pytest.mark.parametrize("large", [gptq.LARGE, INPUTS - 1])
def test_few_places_are_damped_and_many_are_not(large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gptq, "LARGE", large)
    rows = np.random.default_rng(1).standard_normal((32, INPUTS))
    scale, low, high = (np.full(rows.shape, value) for value in (0.4, -8.0, 7.0))
    others, judge = second(mixed(64, 2)), Solver(second(mixed(20000, 3)))

    def noise(some: np.ndarray, share: float) -> float:
        codes = Solver(some, share).codes(rows, scale, low, high)
        return float(judge.costs(rows - codes * scale).sum())

    few, many = second(mixed(96, 4)), second(mixed(20000, 5))
    assert noise(few, best_damping(few, others, rows, scale, low, high)) < 0.9 * noise(few, gptq.DAMPING)
    assert best_damping(many, others, rows, scale, low, high) < 0.1


@pytest.mark.parametrize(("shared", "found"), [(1.0, True), (0.0, False)])
def test_what_is_in_the_samples_alone_is_not_made_up_for(shared: float, found: bool) -> None:
    """What was taken from the inputs either goes with them or is chance."""
    rng = np.random.default_rng(0)

    def half(count: int) -> tuple[np.ndarray, np.ndarray]:
        inputs = mixed(count, int(rng.integers(1000)))
        taken = shared * 0.1 * np.roll(inputs, 1, axis=1) + (1 - shared) * rng.standard_normal(inputs.shape)
        return second(inputs), taken.T @ inputs / count

    share = best_regularization(half(96), half(64), np.random.default_rng(1).standard_normal((32, INPUTS)))
    assert (share is not None) == found


def test_a_layer_of_many_inputs_does_not_learn_the_samples_by_heart(monkeypatch: pytest.MonkeyPatch) -> None:
    model, fresh = network(), {"x": mixed(2000, 2)}
    wanted, noise = ort_run(model, fresh)["y"], []
    for inputs in (moments.MANY, INPUTS + 1):
        monkeypatch.setattr(moments, "MANY", inputs)
        made = onnxqat.insert_qdq(
            model,
            data={"x": mixed(128, 1)},
            overrides=Overrides(weight_bits=4),
            rounding="compensated",
            guard=False,
        )
        noise.append(float(np.square(ort_run(made.model, fresh)["y"] - wanted).mean()))
    assert noise[0] < 0.9 * noise[1]
