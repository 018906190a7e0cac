"""Which weights fine-tuning writes: the best by a score, the start where none beats it, an average, or the last."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from onnxqat.bridge.export.write_back import write_back
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UsageError
from onnxqat.training.callbacks.callback import Callback
from onnxqat.training.config import CheckpointConfig, OptimizerConfig, ScoreConfig
from onnxqat.training.loop import checkpoint
from tests.training.grouped import finetune
from tests.training.test_finetune import data, network


def test_the_best_epoch_is_written_when_there_is_a_score(tmp_path: Path) -> None:
    x, y = data(64)
    scores = iter([0.2, 0.1, 0.9, 0.3])
    seen: list[dict[str, Tensor]] = []

    def evaluate(module: torch.nn.Module) -> float:
        assert not module.training
        seen.append({k: v.clone() for k, v in module.state_dict().items()})
        return next(scores)

    result = finetune(
        network(quantized=True),
        x,
        labels=y,
        epochs=3,
        score=ScoreConfig(evaluate=evaluate),
        checkpoints=tmp_path,
        device="cpu",
    )
    assert (result.written, result.best_epoch, result.best_score) == ("best", 2, 0.9)
    for key, value in result.module.state_dict().items():
        assert torch.equal(value, seen[2][key])
    kept = to_torch(network(quantized=True))
    assert checkpoint.load(tmp_path / "best.safetensors", kept).best_epoch == 2
    assert torch.equal(kept(torch.from_numpy(x)), result.module(torch.from_numpy(x)))
    checkpoint.load(tmp_path / "last.safetensors", kept)
    assert not torch.equal(kept(torch.from_numpy(x)), result.module(torch.from_numpy(x)))


def test_a_run_ends_once_the_score_is_high_enough(tmp_path: Path) -> None:
    """Scored every 2 steps of epochs of 3; the third score, after 4 steps, is enough, and what it saw is written."""
    x, y = data(96)
    scores = iter([0.1, 0.3, 0.7, 0.9])
    seen: list[dict[str, Tensor]] = []

    def evaluate(module: torch.nn.Module) -> float:
        seen.append({k: v.clone() for k, v in module.state_dict().items()})
        return next(scores)

    options: dict[str, Any] = {"labels": y, "max_steps": 30, "device": "cpu", "checkpoint_dir": tmp_path}
    options |= {"score_every": 2, "target": 0.6}
    result = finetune(network(quantized=True), x, evaluate=evaluate, **options)
    assert (result.steps, result.written, result.best_score, result.best_epoch) == (4, "best", 0.7, 2)
    for key, value in result.module.state_dict().items():
        assert torch.equal(value, seen[2][key])
    # A run that is good enough is not gone on with.
    again = finetune(
        network(quantized=True),
        x,
        evaluate=evaluate,
        resume=True,
        **options,
    )
    assert (again.steps, len(seen)) == (4, 3)
    assert again.model.SerializeToString() == result.model.SerializeToString()


def test_scores_every_few_steps_and_at_the_end() -> None:
    x, y = data(96)
    found: list[float] = []
    told: list[tuple[int, float]] = []

    class Told(Callback):
        name = "told"

        def after_epoch(self, epoch: int, loss: float, score: float) -> None:
            told.append((epoch, score))

    def evaluate(module: torch.nn.Module) -> float:
        found.append(float(len(found)))
        return found[-1]

    result = finetune(
        network(quantized=True),
        x,
        labels=y,
        epochs=3,
        score=ScoreConfig(evaluate=evaluate, every=4),
        callbacks=(Told(),),
        device="cpu",
    )
    assert (result.steps, result.best_score) == (9, 3.0)  # scored before step 1 and after steps 4, 8 and 9
    assert told == [(1, 0.0), (2, 1.0), (3, 3.0)]
    for option in ({"target": 1.0}, {"score_every": 4}, {"score_every": 0, "evaluate": evaluate}):
        with pytest.raises(UsageError):
            finetune(network(quantized=True), x, labels=y, device="cpu", **option)  # type: ignore[arg-type]


def test_the_start_is_written_when_no_epoch_beats_it(tmp_path: Path) -> None:
    """By a score of the user's, or by the loss on samples that training does not see: a rate that ruins the network."""
    x, y = data(64)
    model = network(quantized=True)
    scores = iter([0.5, 0.4, 0.5])
    result = finetune(model, x, labels=y, epochs=2, score=ScoreConfig(evaluate=lambda _: next(scores)), device="cpu")
    assert (result.written, result.best_epoch, result.best_score) == ("start", 0, 0.5)
    assert result.model.SerializeToString() == untouched(model)
    x, _ = data(100)
    # A step of Adam moves each weight by its rate: these are forgotten, and the cosine ends before new ones are found.
    options: dict[str, Any] = {"epochs": 2, "batch_size": 40, "learning_rate": 3.0, "device": "cpu"}
    result = finetune(model, x, teacher=network(quantized=False), checkpoints=tmp_path, **options)
    assert (result.written, result.best_epoch, result.steps) == ("start", 0, 4)
    assert result.model.SerializeToString() == untouched(model)
    again = finetune(
        model, x, teacher=network(quantized=False), checkpoints=CheckpointConfig(tmp_path, resume=True), **options
    )
    assert (again.written, again.best_score) == ("start", result.best_score)
    assert again.model.SerializeToString() == untouched(model)


def untouched(model: onnx.ModelProto) -> bytes:
    """`model` written back without training, with the note that finetune leaves."""
    content: bytes = write_back(to_torch(model), model, metadata={"onnxqat.method": "lsq"}).SerializeToString()
    return content


def test_a_file_of_a_hundred_samples_is_split_as_arrays_are(tmp_path: Path) -> None:
    x, _ = data(100)
    np.savez(tmp_path / "x.npz", x=x)
    model, teacher = network(quantized=True), network(quantized=False)
    options: dict[str, Any] = {"teacher": teacher, "epochs": 2, "batch_size": 20, "device": "cpu"}
    arrays, file = finetune(model, {"x": x}, **options), finetune(model, tmp_path / "x.npz", **options)
    assert (arrays.steps, file.steps) == (8, 8)
    assert arrays.model.SerializeToString() == file.model.SerializeToString()


def test_data_that_can_be_read_once_has_no_score() -> None:
    """Then the last weights are written, or their moving average."""
    x, y = data(64)
    options: dict[str, Any] = {"max_steps": 2, "device": "cpu"}
    last, average = (
        finetune(
            network(quantized=True),
            iter([(x[:32], y[:32]), (x[32:], y[32:])]),
            optimizer=OptimizerConfig(ema=ema),
            **options,
        )
        for ema in (None, 0.999)
    )
    assert (last.written, average.written) == ("last", "average")
    assert average.losses == last.losses
    assert average.model.SerializeToString() != last.model.SerializeToString()


def test_a_moving_average_is_what_is_scored_and_written() -> None:
    x, y = data(64)
    options: dict[str, Any] = {"labels": y, "epochs": 6, "learning_rate": 1e-2, "device": "cpu"}
    last = finetune(network(quantized=True), x, **options)
    average = finetune(network(quantized=True), x, optimizer=OptimizerConfig(ema=0.9), **options)
    assert (last.written, average.written) == ("best", "best")
    assert average.losses == last.losses
    assert average.best_score != last.best_score
    assert average.model.SerializeToString() != last.model.SerializeToString()


def test_a_gain_that_few_samples_may_give_by_chance_is_none() -> None:
    """Six steps at the small default rate: the loss on twelve held-out samples falls by less than its standard error."""
    x, y = data(64)
    last: list[float] = []

    class Told(Callback):
        name = "told"

        def after_epoch(self, epoch: int, loss: float, score: float) -> None:
            last.append(score)

    result = finetune(network(quantized=True), x, labels=y, epochs=3, callbacks=(Told(),), device="cpu")
    assert result.start_score is not None
    assert last[-1] > result.start_score
    assert (result.written, result.best_score, result.scored_samples) == ("start", result.start_score, 12)
    assert any("of the start by more than chance (it ended at" in remark.message for remark in result.remarks)
