"""Dampening and freezing of oscillating weights: formulas, fewer oscillations on a toy, resuming."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.data.inputs import InputInfo
from onnxqat.errors import UsageError
from onnxqat.training import methods
from onnxqat.training.callbacks import dampening, freezing
from onnxqat.training.callbacks.callback import Callback
from onnxqat.training.callbacks.dampening import Dampening
from onnxqat.training.callbacks.freezing import Freezing
from onnxqat.training.callbacks.quantized_weights import quantized_weights
from onnxqat.training.data.batches import ArrayBatches
from onnxqat.training.fit import fit
from onnxqat.training.optim import optimizers
from onnxqat.training.schedules import constant
from tests.training.test_finetune import data, network


class Count(Callback):
    """How often a code of a weight changes in the second half of a run."""

    name = "count"

    def start(self, loop: Any) -> None:
        self.weights = list(quantized_weights(loop.module))
        self.codes = [w.steps()[0] for w in self.weights]
        self.half = loop.schedule.total_steps // 2
        self.changes = 0

    def after_step(self, step: int) -> None:
        codes = [w.steps()[0] for w in self.weights]
        if step >= self.half:
            self.changes += sum(int((a != b).sum()) for a, b in zip(self.codes, codes, strict=True))
        self.codes = codes


class Stop(Callback):
    """Ends a run by an error."""

    name = "stop"

    def __init__(self, step: int = 120) -> None:
        self.step = step

    def before_step(self, step: int) -> None:
        if step == self.step:
            raise KeyboardInterrupt


def train(*callbacks: Callback, folder: Path | None = None, resume: bool = False) -> torch.nn.Module:
    """A run at a constant rate, at which weights near the edge of their code's interval never settle."""
    x, y = data(64)
    module = to_torch(network(quantized=True), quantizer_factory=methods.factory("fixed"))
    for key, name in module.parameter_names.items():
        module.get_parameter(key).requires_grad_(name == "half" or module.get_parameter(key).requires_grad)
    optimizer = optimizers.make("sgd", module, learning_rate=0.02)
    batches = ArrayBatches({"x": x}, y, [InputInfo("x", "float32", (None, 8))], batch_size=64, seed=0)
    schedule = constant.Schedule(200)
    fit(
        module,
        batches,
        optimizer,
        total_steps=200,
        schedule=schedule,
        callbacks=callbacks,
        folder=folder,
        resume=resume,
    )
    return module


def test_the_distance_and_its_gradient() -> None:
    module = to_torch(network(quantized=True))
    found = {w.quantizer.tensor: w for w in quantized_weights(module)}
    assert set(found) == {"w1", "w2"}
    w = found["w1"]
    with torch.no_grad():
        w.weight[0, 0] = 9.0  # saturates
    value = dampening.distance(w)
    value.backward()
    scale = w.quantizer.scale.detach()[:, None]
    weight = w.weight.detach()
    error = weight - (weight / scale).round().clamp(-3, 3) * scale
    error[0, 0] = 0.0
    assert value.item() == pytest.approx(error.square().sum().item(), rel=1e-5)
    torch.testing.assert_close(w.weight.grad, 2 * error)
    assert w.quantizer.scale.grad is None


def test_weights_in_blocks_have_a_scale_each() -> None:
    module = to_torch(network(quantized=True))
    w = next(iter(quantized_weights(module)))
    q = w.quantizer
    per_channel, scale = w.steps()
    q.axis, q.block_size = 1, 8
    q.scale = torch.nn.Parameter(q.scale.detach()[:, None])
    q.zero_point = q.zero_point[:, None]
    in_blocks, of_blocks = w.steps()
    assert torch.equal(per_channel, in_blocks)
    assert torch.equal(scale.expand_as(of_blocks), of_blocks)


def test_both_make_weights_oscillate_less() -> None:
    plain, dampened, frozen = Count(), Count(), Count()
    train(plain)
    train(Dampening(0.3), dampened)
    freeze = Freezing(0.01)
    module = train(freeze, frozen)
    assert plain.changes > 20
    assert dampened.changes < 0.7 * plain.changes
    assert frozen.changes < 0.7 * plain.changes
    assert 0 < freeze.frozen() < 100
    # What is frozen lies on the grid.
    for track in freeze._tracks.values():
        codes, scale = track.weight.steps()
        off = (track.weight.weight.detach() - codes * scale).abs()[track.frozen]
        assert off.numel() == 0 or float(off.max()) < 1e-6
    assert module.training is False


def test_freezing_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole = train(Freezing(0.01))
    with pytest.raises(KeyboardInterrupt):
        train(Freezing(0.01), Stop(), folder=tmp_path)
    freeze = Freezing(0.01)
    resumed = train(freeze, folder=tmp_path, resume=True)
    assert freeze.frozen() > 0
    for a, b in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("make", [lambda: Dampening(0.0), lambda: Freezing(0.0), lambda: Freezing(0.2)])
def test_what_is_refused(make: Any) -> None:
    with pytest.raises(UsageError):
        make()
    assert freezing.PAPER < freezing.START
    assert np.isfinite(dampening.PAPER)
