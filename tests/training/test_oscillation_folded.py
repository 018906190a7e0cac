"""Dampening and freezing of weights into which the graph folds a BatchNormalization: what oscillates is the folded one."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.data.inputs import InputInfo
from onnxqat.insertion.insert import insert_qdq
from onnxqat.placement.table_overrides import Overrides
from onnxqat.training import methods
from onnxqat.training.callbacks import dampening
from onnxqat.training.callbacks.callback import Callback
from onnxqat.training.callbacks.dampening import Dampening
from onnxqat.training.callbacks.freezing import Freezing
from onnxqat.training.callbacks.quantized_weights import QuantizedWeight, quantized_weights
from onnxqat.training.data.batches import ArrayBatches
from onnxqat.training.fit import fit
from onnxqat.training.optim import optimizers
from onnxqat.training.schedules import constant
from tests.backends.planning import proto, weight
from tests.training.test_oscillation import Count, Stop

TEXT = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[N,2,4,4] image) => (float[N,4] logits)
<float[4] g = {{2, -1.5, 0.5, 1}}, float[4] b = {{0.5, 1, -1, 0.25}}, float[4] m = {{0.5, 0, -1, 0.1}}, float[4] v = {{4, 1, 0.25, 2}},
 float[4,2,3,3] w = {weight(4, 2, 3, 3)}> {{
    s = Conv<pads = [1,1,1,1]>(image, w) t = BatchNormalization(s, g, b, m, v)
    r = Relu(t) p = GlobalAveragePool(r) logits = Flatten(p) }}"""
IMAGES = {"image": np.random.default_rng(1).normal(size=(16, 2, 4, 4)).astype(np.float32)}
LABELS = np.arange(16) % 4
STEPS = 200


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    """Weights of 3 bits; with exact scales, which cannot take up a factor."""
    overrides = Overrides(exact=True, weight_bits=3, first_last_bits=3)
    made: onnx.ModelProto = insert_qdq(
        proto(TEXT), "academic", data=IMAGES, overrides=overrides, batch_norm="keep"
    ).model
    return made


def weights(module: torch.nn.Module) -> dict[str, QuantizedWeight]:
    return {w.quantizer.tensor: w for w in quantized_weights(module)}


def train(
    model: onnx.ModelProto, *callbacks: Callback, folder: Path | None = None, resume: bool = False
) -> torch.nn.Module:
    """A run at a constant rate, with live statistics, in which the weights never settle."""
    module = to_torch(model, quantizer_factory=methods.factory("fixed"))
    optimizer = optimizers.make("sgd", module, learning_rate=0.1)
    image = InputInfo("image", "float32", (None, 2, 4, 4))
    batches = ArrayBatches(IMAGES, LABELS, [image], batch_size=8, seed=0)
    schedule = constant.Schedule(STEPS)
    fit(
        module,
        batches,
        optimizer,
        total_steps=STEPS,
        schedule=schedule,
        callbacks=callbacks,
        folder=folder,
        resume=resume,
    )
    return module


def test_codes_are_those_of_what_the_graph_folds(model: onnx.ModelProto) -> None:
    module = to_torch(model).eval()
    found = weights(module)
    assert len(found) == 1
    assert all(w.folded is not None for w in found.values())
    read: dict[str, torch.Tensor] = {}
    gave: dict[str, torch.Tensor] = {}

    def look(q: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        read[q.tensor], gave[q.tensor] = inputs[0].detach(), output.detach()

    for w in found.values():
        w.quantizer.register_forward_hook(look)
    module(torch.from_numpy(IMAGES["image"]))
    for tensor, w in found.items():
        codes, scale = w.steps()
        torch.testing.assert_close(w.value(), read[tensor], rtol=0, atol=0)
        torch.testing.assert_close(codes * scale, gave[tensor], rtol=0, atol=0)


def test_the_distance_pulls_the_weight_and_not_gamma(model: onnx.ModelProto) -> None:
    for w in weights(to_torch(model)).values():
        assert w.folded is not None
        factor = w.folded.factor()
        codes, scale = w.steps()
        error = (w.weight * factor - codes * scale).detach()
        inside = error.abs() <= 0.5 * scale
        value = dampening.distance(w)
        value.backward()
        assert value.item() == pytest.approx((error * inside).square().sum().item(), rel=1e-5)
        torch.testing.assert_close(w.weight.grad, 2 * error * inside * factor)
        assert w.folded.gamma.grad is None


def test_both_make_folded_weights_oscillate_less(model: onnx.ModelProto) -> None:
    plain, dampened, frozen = Count(), Count(), Count()
    train(model, plain)
    train(model, Dampening(1.0), dampened)
    freeze = Freezing(0.01)
    module = train(model, freeze, frozen)
    assert plain.changes > 20
    assert dampened.changes < 0.7 * plain.changes
    assert frozen.changes < 0.7 * plain.changes
    assert freeze.frozen() > 0
    # What is frozen is held where it was put, and nothing has grown.
    for track in freeze._tracks.values():
        weight = track.weight.weight.detach()
        torch.testing.assert_close(weight[track.frozen], track.held[track.frozen], rtol=0, atol=0)
    assert all(torch.isfinite(value).all() for value in module.state_dict().values())


def test_a_channel_without_a_factor_is_left_alone(model: onnx.ModelProto) -> None:
    w = next(iter(weights(to_torch(model)).values()))
    assert w.folded is not None
    with torch.no_grad():
        w.folded.gamma[0] = 0.0
    codes, scale = w.steps()
    wanted = w.weight_of(codes * scale)
    alone = (w.folded.factor() == 0).expand_as(w.weight)
    assert 0 < int(alone.sum()) < w.weight.numel()
    torch.testing.assert_close(wanted[alone], w.weight.detach()[alone], rtol=0, atol=0)
    torch.testing.assert_close((wanted * w.folded.factor())[~alone], (codes * scale)[~alone])


def test_freezing_of_folded_weights_resumes_bit_for_bit(model: onnx.ModelProto, tmp_path: Path) -> None:
    whole = train(model, Freezing(0.01))
    with pytest.raises(KeyboardInterrupt):
        train(model, Freezing(0.01), Stop(120), folder=tmp_path)
    freeze = Freezing(0.01)
    resumed = train(model, freeze, folder=tmp_path, resume=True)
    assert freeze.frozen() > 0
    for a, b in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b)
