"""What a run is scored on, how long it is by default, and what it says where it did not help."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.report import build
from onnxqat.report.json import to_dict
from onnxqat.training.config import ScoreConfig
from onnxqat.training.data import holdout
from onnxqat.training.data.holdout import split
from onnxqat.training.distributed.process_context import ProcessContext
from onnxqat.training.loop.collapse import Variation, collapsed
from onnxqat.training.optim import run_length
from tests.training.grouped import finetune
from tests.training.test_best_weights import untouched
from tests.training.test_finetune import data, network


@pytest.mark.parametrize(
    ("samples", "labels", "scored"),
    [(9, False, 9), (10, True, 2), (100, False, 20), (256, True, 51), (5000, True, 500)],
)
def test_a_fifth_of_the_samples_is_held_out(samples: int, labels: bool, scored: int, tmp_path: Path) -> None:
    from onnxqat.data.inputs import of_graph
    from onnxqat.graph import io
    from onnxqat.training.data import batches

    inputs = of_graph(io.load(network(quantized=True)).graph)
    x = np.arange(samples * 8, dtype=np.float32).reshape(samples, 8)
    y = np.zeros(samples, np.int64) if labels else None
    np.savez(tmp_path / "x.npz", **({"x": x} if y is None else {"x": x, "labels": y}))
    for given, of_arrays in (({"x": x}, y), (tmp_path / "x.npz", None)):
        source = batches.make(given, of_arrays, inputs, batch_size=8, seed=0)
        found = split(source, has_labels=labels)
        assert (found.samples, found.held_out) == (scored, samples >= holdout.FEWEST)
        seen, held = (
            {float(v) for batch in part for v in batch.inputs["x"][:, 0]}
            for part in (found.train.epoch(0), found.scored)
        )
        assert len(held) == scored
        assert len(seen) == samples - scored * found.held_out
        assert not (found.held_out and seen & held)


def test_batches_of_the_callers_code_are_scored_as_trained() -> None:
    x, y = data(64)
    result = finetune(network(quantized=True), lambda: iter([(x[:32], y[:32]), (x[32:], y[32:])]), max_steps=60)
    assert (result.held_out, result.scored_samples) == (False, 64)
    assert any("samples that were trained on" in remark.message for remark in result.remarks)


def test_scores_before_and_after_are_told() -> None:
    x, _ = data(100)
    teacher = network(quantized=False)
    result = finetune(network(quantized=True), x, teacher=teacher, learning_rate=0.005, device="cpu")
    assert (result.steps, result.scored_samples, result.held_out) == (200, 20, True)
    assert result.start_score is not None
    assert result.best_score is not None
    assert result.best_score > result.start_score
    assert (result.helped, result.written, result.remarks) == (True, "best", ())
    figures = to_dict(build.from_finetune(result))["figures"]
    assert figures["start_score"] == result.start_score
    assert figures["best_score"] == result.best_score
    assert figures["helped"] is True
    assert "20 samples held out" in figures["score"]


def test_a_run_that_does_not_help_says_so_and_keeps_the_start() -> None:
    x, _ = data(100)
    model = network(quantized=True)
    options: dict[str, Any] = {"epochs": 2, "batch_size": 40, "learning_rate": 3.0, "device": "cpu"}
    result = finetune(model, x, teacher=network(quantized=False), **options)
    assert (result.helped, result.written, result.best_score) == (False, "start", result.start_score)
    assert result.model.SerializeToString() == untouched(model)
    messages = " ".join(remark.message for remark in result.remarks)
    for part in ("training did not help", "training diverged: the loss grew", "the values of the start were kept"):
        assert part in messages
    assert "too few steps to change a network: 4; without a number of epochs or steps it takes 40" in messages


def test_outputs_that_become_constant_are_not_kept() -> None:
    """A loss that rewards silence: each epoch scores higher than the start, and none may be kept."""

    def silence(outputs: Any, labels: Tensor | None, teacher: Any) -> Tensor:
        return torch.as_tensor(outputs[0].square().mean())

    x, _ = data(100)
    model = network(quantized=True)
    options: dict[str, Any] = {"epochs": 60, "batch_size": 16, "learning_rate": 0.05, "device": "cpu"}
    result = finetune(model, x, loss=silence, teacher=network(quantized=False), **options)
    assert any("training collapsed" in remark.message for remark in result.remarks)
    with torch.no_grad():
        kept, start = (module(torch.from_numpy(x)).var(0).mean() for module in (result.module, to_torch(model).eval()))
    assert kept > 0.005 * start


def test_a_score_that_is_not_a_number_is_the_worst() -> None:
    """At the start, so that a later one beats it; and later, so that it is not kept."""
    x, y = data(64)
    options: dict[str, Any] = {"labels": y, "epochs": 2, "device": "cpu"}
    for given, epoch, best in (([np.nan, 0.1, np.nan], 1, 0.1), ([0.2, np.nan, np.nan], 0, 0.2)):
        scores = iter(given)
        result = finetune(
            network(quantized=True), x, score=ScoreConfig(evaluate=lambda _, s=scores: next(s)), **options
        )
        assert (result.best_epoch, result.best_score) == (epoch, best)


def test_collapse_is_told_from_less_noise() -> None:
    world, place = ProcessContext(), torch.device("cpu")
    random = torch.Generator().manual_seed(0)

    def variation(*outputs: Tensor) -> list[float | None]:
        found = Variation()
        found.add([o[:10] for o in outputs], 10)
        found.add([o[10:] for o in outputs], 10)
        return found.values(world, place)

    noise, signal = torch.randn(20, 5, generator=random), 0.01 * torch.randn(20, 5, generator=random)
    number = torch.arange(20)
    start, teacher = variation(noise, noise, number), variation(noise, signal, number)
    assert start[0] == pytest.approx(float(noise.var(0, correction=0).mean()), rel=1e-4)
    assert start[2] is None
    assert collapsed(variation(1e-3 * noise, signal, number), [start, teacher]) == [0]
    assert collapsed(variation(noise, noise * torch.nan, number), [start, teacher]) == [1]
    assert collapsed(variation(noise, torch.ones(20, 5), number), [start]) == [1]


@pytest.mark.parametrize(
    ("samples", "batch", "epochs"), [(80, 8, 20), (80, 1, 5), (400, 8, 8), (800, 32, 6), (5000, 32, 1), (50000, 32, 1)]
)
def test_a_run_without_a_length_gets_one(samples: int, batch: int, epochs: int) -> None:
    assert run_length.default_epochs(-(-samples // batch), samples) == epochs


def test_short_runs_are_remarked_on() -> None:
    assert run_length.few(50, 200) is None
    assert run_length.few(3, 200) == (
        "too few steps to change a network: 3; without a number of epochs or steps it takes 200"
    )
    assert run_length.few(1, None) == "too few steps to change a network: 1; give more data, or smaller batches"
    assert run_length.batch_size(100, given=None, has_length=False) == 8
    assert run_length.batch_size(100, given=None, has_length=True) == 32
    assert run_length.batch_size(None, given=None, has_length=False) == 32
    assert run_length.batch_size(100, given=3, has_length=False) == 3
