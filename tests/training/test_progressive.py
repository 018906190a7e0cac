"""Progressive widths: ranges stay, derived biases follow, the file's grid is where a run ends, and runs resume."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from onnxqat.bridge.export.write_back import write_back
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.quantizers.derived_fake_quantize import DerivedFakeQuantize
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.data.inputs import InputInfo
from onnxqat.errors import UsageError
from onnxqat.training import methods
from onnxqat.training.callbacks.callback import Callback
from onnxqat.training.callbacks.progressive import Progressive
from onnxqat.training.data.batches import ArrayBatches
from onnxqat.training.fit import fit
from onnxqat.training.optim import optimizers
from onnxqat.training.optim.moving_average import MovingAverage
from tests.training.test_finetune import data, network


class Watch(Callback):
    """Notes the grids of each step, and may end the run."""

    name = "watch"

    def __init__(self, stop: int | None = None) -> None:
        self.stop = stop
        self.seen: list[dict[str, tuple[int, int, float, int]]] = []

    def start(self, loop: Any) -> None:
        self.module = loop.module

    def before_step(self, step: int) -> None:
        if step == self.stop:
            raise KeyboardInterrupt
        self.seen.append(
            {
                q.tensor: (q.quant_min, q.quant_max, float(q.effective_scale().flatten()[0].detach()), q.finer)
                for _, q in quantizers(self.module)
            }
        )


def train(
    model: onnx.ModelProto | None = None,
    *callbacks: Callback,
    optimizer: str = "adam",
    method: str = "lsq",
    rate: float = 0.0,
    ema: float | None = None,
    **options: Any,
) -> torch.nn.Module:
    """A run of 12 steps, 4 in an epoch."""
    x, y = data(64)
    module = to_torch(model or network(quantized=True), quantizer_factory=methods.factory(method, limit_steps=False))
    batches = ArrayBatches({"x": x}, y, [InputInfo("x", "float32", (None, 8))], batch_size=16, seed=0)
    made = optimizers.make(optimizer, module, learning_rate=rate)
    average = MovingAverage(module, ema) if ema else None
    options.setdefault("scored", list(batches.epoch(0)))
    fitted = fit(module, batches, made, total_steps=12, callbacks=callbacks, average=average, **options)
    module.load_state_dict(fitted.best)
    return module


def test_widths_fall_and_ranges_stay() -> None:
    watch = Watch()
    module = train(None, Progressive([8, 4]), watch)
    # Weights have 3 bits (-3..3) and activations 4 (-7..7): 8 bits for 3 steps, 4 for 3, then their own.
    of_weights = [seen["w1"][:2] for seen in watch.seen]
    of_inputs = [seen["x"][:2] for seen in watch.seen]
    assert of_weights == [(-96, 96)] * 3 + [(-6, 6)] * 3 + [(-3, 3)] * 6
    assert of_inputs == [(-112, 112)] * 3 + [(-7, 7)] * 9
    for tensor in ("w1", "x"):
        ranges = {seen[tensor][1] * seen[tensor][2] for seen in watch.seen}
        assert len(ranges) == 1, "without learning, the range is the same to the bit"
    untouched = network(quantized=True)
    assert write_back(module, untouched).SerializeToString() == untouched.SerializeToString()


def test_finer_grids_are_closer_to_float() -> None:
    x = torch.from_numpy(data(64)[0])
    wanted = to_torch(network(quantized=False))(x).detach()

    class Distance(Watch):
        def after_step(self, step: int) -> None:
            with torch.no_grad():
                self.seen.append(float((self.module(x) - wanted).square().mean()))  # type: ignore[arg-type]

        def before_step(self, step: int) -> None:
            pass

    watch = Distance()
    train(None, Progressive([8, 4]), watch)
    fine, middle, own = watch.seen[0], watch.seen[3], watch.seen[-1]
    assert 4 * fine < middle < own  # type: ignore[operator]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("ema", [None, 0.5])
def test_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(
    tmp_path: Path, optimizer: str, ema: float | None
) -> None:
    options: dict[str, Any] = {"optimizer": optimizer, "rate": 0.01, "ema": ema}
    whole = train(None, Progressive([8]), Watch(), **options)
    with pytest.raises(KeyboardInterrupt):
        train(None, Progressive([8]), Watch(stop=5), folder=tmp_path, **options)
    resumed = train(None, Progressive([8]), Watch(), folder=tmp_path, resume=True, **options)
    for a, b in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_scales_move_by_the_same_fraction_on_a_finer_grid() -> None:
    """Adam's first step changes a scale by its learning rate; on a grid 32 times as fine, by that over 32."""
    rates = {}
    for widths in ((), (8,)):
        watch = Watch()
        callbacks = [Progressive(widths)] if widths else []
        train(None, *callbacks, watch, rate=0.001)
        first, second = (seen["w1"][2] for seen in watch.seen[:2])
        rates[widths] = abs(second / first - 1.0)
    assert 0 < rates[()] < 0.005
    assert rates[(8,)] == pytest.approx(rates[()], rel=0.01)


def test_only_the_files_own_grid_is_scored_as_the_best_and_written() -> None:
    scores = iter([0.0, 9.0, 1.0, 2.0])
    kept: list[dict[str, Any]] = []

    class Keep(Watch):
        def after_epoch(self, epoch: int, loss: float, score: float) -> None:
            kept.append({q.tensor: q.finer for _, q in quantizers(self.module)})
            if epoch == 1:
                with pytest.raises(UsageError, match="16 times as fine"):
                    write_back(self.module, network(quantized=True))

    x, y = data(64)
    module = to_torch(network(quantized=True), quantizer_factory=methods.factory("lsq", limit_steps=False))
    batches = ArrayBatches({"x": x}, y, [InputInfo("x", "float32", (None, 8))], batch_size=16, seed=0)
    made = optimizers.make("adam", module, learning_rate=0.01)
    callbacks = [Progressive([8]), Keep()]
    fitted = fit(module, batches, made, total_steps=12, callbacks=callbacks, evaluate=lambda _: next(scores))
    assert [each["w1"] for each in kept] == [32, 1, 1]
    assert (fitted.progress.best_epoch, fitted.progress.best_score) == (3, 2.0)


def test_derived_biases_and_unsigned_grids_follow() -> None:
    """A bias on the product of two grids, and codes 0..15 with a zero point of 5."""
    model = network(quantized=True)
    replaced = {"x_zero": np.uint8(5), "x_low": np.uint8(0), "x_high": np.uint8(15)}
    scales = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for tensor in model.graph.initializer:
        if tensor.name in replaced:
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(replaced[tensor.name]), tensor.name))
    bias = next(t for t in model.graph.initializer if t.name == "b1")
    product = scales["x_scale"] * scales["w1_scale"]
    bias.CopyFrom(numpy_helper.from_array(np.arange(16, dtype=np.int32), "b1"))
    model.graph.initializer.extend(
        [numpy_helper.from_array(product, "b1_scale"), numpy_helper.from_array(np.zeros(16, np.int32), "b1_zero")]
    )
    index = next(i for i, node in enumerate(model.graph.node) if node.output[0] == "h1")
    node = onnx.helper.make_node("DequantizeLinear", ["b1", "b1_scale", "b1_zero"], ["b1_dq"], axis=0)
    model.graph.node[index].input[2] = "b1_dq"
    model.graph.node.insert(index, node)
    onnx.checker.check_model(model)
    watch = Watch()
    module = train(model, Progressive([8]), watch)
    derived = [q for _, q in quantizers(module) if isinstance(q, DerivedFakeQuantize)]
    assert len(derived) == 1
    assert watch.seen[0][derived[0].tensor][2] == watch.seen[-1][derived[0].tensor][2] / (16 * 32)
    assert (watch.seen[0]["x"][:2], watch.seen[-1]["x"][:2]) == ((0, 240), (0, 15))
    assert next(q for _, q in quantizers(module) if q.tensor == "x").zero_point.item() == 5
    assert write_back(module, model).SerializeToString() == model.SerializeToString()


@pytest.mark.parametrize("method", ["lsq-plus", "pact", "tqt", "ema", "dorefa", "qdrop"])
def test_every_method_ends_on_the_files_grid(method: str) -> None:
    watch = Watch()
    module = train(None, Progressive([8, 5]), watch, method=method, rate=0.002)
    own = {q.tensor: (q.quant_min, q.quant_max) for _, q in quantizers(to_torch(network(quantized=True)))}
    started = [q for _, q in quantizers(module) if watch.seen[0][q.tensor][3] > 1]
    assert {q.tensor for q in started} >= {"x", "h3"}
    for q in started:
        assert (q.quant_min, q.quant_max, q.finer) == (*own[q.tensor], 1)


@pytest.mark.parametrize("widths", [[], [4, 8], [16, 8], [8, 1], [3], [2]])
def test_widths_that_are_refused(widths: list[int]) -> None:
    with pytest.raises(UsageError):
        train(None, Progressive(widths))


def test_a_run_too_short_for_its_widths_is_refused() -> None:
    with pytest.raises(UsageError, match="too few"):
        train(None, Progressive([8, 7, 6, 5, 4]), schedule=_Short())


class _Short:
    total_steps = 9

    def factor(self, step: int) -> float:
        return 1.0
