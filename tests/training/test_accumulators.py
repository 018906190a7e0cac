"""Files whose sums stay within a width for any input: made so, and kept so in training."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest
import torch

import onnxqat
from onnxqat.calibration import accumulators
from onnxqat.errors import UsageError
from onnxqat.graph import io, notes
from onnxqat.placement.table_overrides import Overrides
from onnxqat.training.callbacks import accumulators as kept
from onnxqat.training.callbacks.callback import Callback, Run
from onnxqat.training.config import OptimizerConfig
from tests.bridge.integer import networks

BITS = 16


def made(bits: int | None, **overrides: object) -> onnx.ModelProto:
    data = networks.images(16)
    found = onnxqat.insert_qdq(
        networks.kinds(),
        "academic" if overrides else "onnxruntime-cpu",
        data={"x": data},
        overrides=Overrides(accumulator_bits=bits, **overrides),  # type: ignore[arg-type]
    )
    assert isinstance(found.model, onnx.ModelProto)
    said = [r.message for r in found.remarks if "dB" in r.message and "accumulators of" in r.message]
    assert len(said) == (bits is not None)
    return found.model


@pytest.fixture(scope="module")
def wide() -> onnx.ModelProto:
    return made(None)


@pytest.fixture(scope="module")
def narrow() -> onnx.ModelProto:
    return made(BITS)


def test_scales_are_raised_until_no_input_leaves_the_width(wide: onnx.ModelProto, narrow: onnx.ModelProto) -> None:
    before, after = onnxqat.prove(wide), onnxqat.prove(narrow)
    assert before.bits is not None
    assert before.bits > BITS
    assert after.bits == BITS  # as much as there is room
    assert after.accumulator_bits == BITS
    assert after.failures == ()
    assert notes.accumulator_bits(io.load(wide)) is None


def test_a_width_without_room_is_refused() -> None:
    with pytest.raises(UsageError, match="hold next to none of its products"):
        made(8)
    with pytest.raises(UsageError, match="an accumulator of 40 bits"):
        made(40)


class Watch(Callback):
    """Moves weights away from 0 behind each step, so that sums grow."""

    name = "watch"

    def start(self, run: Run) -> None:
        self.module = run.module

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        for name, parameter in self.module.named_parameters():
            if parameter.ndim > 1:
                assert "scale" not in name
                parameter.mul_(1.05)


def tuned(model: onnx.ModelProto) -> onnx.ModelProto:
    later = itertools.count()  # what is written is what the last step made
    found = onnxqat.finetune(
        model,
        {"x": networks.images(16, 4)},
        teacher=networks.kinds(),
        max_steps=6,
        batch_size=8,
        learning_rate=1e-3,
        optimizer=OptimizerConfig("adamw", scale_learning_rate=0.0),
        callbacks=[Watch()],
        score=lambda module: float(next(later)),
    )
    assert isinstance(found.model, onnx.ModelProto)
    return found.model


@pytest.mark.parametrize("bits", [(8, 8), (4, 4)])
def test_training_keeps_within_the_width(bits: tuple[int, int]) -> None:
    start = made(BITS if bits == (8, 8) else 12, weight_bits=bits[0], activation_bits=bits[1])
    width = notes.accumulator_bits(io.load(start))
    assert width is not None
    proof = onnxqat.prove(tuned(start))
    assert proof.failures == ()
    assert proof.bits is not None
    assert proof.bits <= width
    free = io.load(start)
    del free.metadata_props[notes.ACCUMULATOR_BITS]
    loose = onnxqat.prove(tuned(io.like(start, free)))
    assert loose.bits is not None
    assert loose.bits > width  # what the projection prevents


@pytest.mark.parametrize("low", [0, -5])
def test_projection_takes_the_least(low: int) -> None:
    rng = np.random.default_rng(0)
    values = torch.from_numpy(rng.standard_normal((6, 40)) * 3)
    above = torch.tensor([100.0, 200, 400, 800, 10**6, 0], dtype=torch.float64)
    below = above + 1
    found = kept._kept(values, float(low), 7.0, above, below)
    ends = accumulators.ends(found.round().long().numpy()[None], (np.asarray(low), np.asarray(7)))
    assert (ends.high <= above.numpy()).all()
    assert (-ends.low <= below.numpy()).all()
    assert torch.equal(found[4], values[4])
    assert not found[5].round().any() or low == 0  # below 0 there is room for one
    for row in range(4):
        lost = (values[row] - found[row]).abs()
        sides = (values[row] > 0, values[row] < 0) if low == 0 else (values[row] != 0,)
        for side in sides:
            alive = side & (found[row] != 0)
            if not alive.any() or not float(lost[alive][0]):
                continue
            amount = float(lost[alive][0])
            assert torch.allclose(lost[alive], torch.full_like(lost[alive], amount))
            less = values[row].sign() * (values[row].abs() - amount * 0.999).clamp(min=0)  # a part in a thousand less
            nearly = torch.where(side, less, found[row]).round().long().numpy()
            ends = accumulators.ends(nearly[None, None], (np.asarray(low), np.asarray(7)))
            assert ends.high[0] > above[row] or -ends.low[0] > below[row]
