"""A run that is interrupted within an epoch ends with the bits of one that is not."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import QatError
from onnxqat.training.callbacks.callback import Callback
from onnxqat.training.config import ScoreConfig
from onnxqat.training.execution.execution import Execution
from onnxqat.training.finetune import Report
from onnxqat.training.loop import checkpoint
from onnxqat.training.loop.progress import Progress
from onnxqat.training.loop.random_state import RandomState
from tests.training.grouped import finetune
from tests.training.nets import convolutional, images


class _InterruptedError(Exception):
    pass


def noise(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Draws from all three generators."""
    image = inputs["image"] + 0.05 * torch.randn_like(inputs["image"]) + 0.05 * random.random()
    return {"image": image + 0.05 * torch.from_numpy(np.random.standard_normal(image.shape).astype(np.float32))}  # noqa: NPY002


def stop_at(step: int) -> Any:
    def progress(report: Report) -> None:
        if report.step == step:
            raise _InterruptedError

    return progress


CASES: dict[str, dict[str, Any]] = {
    "accumulated, averaged, plateau": {
        "accumulate": 2,
        "ema": 0.9,
        "schedule": "plateau",
        "schedule_options": {"patience": 0, "gamma": 0.5},
        "optimizer": "adamw",
    },
    "float16": {"precision": "float16", "optimizer": "sgd", "learning_rate": 0.05},
    "qdrop, wide grids first": {"method": "qdrop", "progressive": (8,), "optimizer": "adam"},
    "recomputed, channels last": {"recompute": True, "channels_last": True, "optimizer": "adamw"},
}


@pytest.mark.parametrize("case", CASES)
def test_interrupted_within_an_epoch(case: str, tmp_path: Path) -> None:
    x, y = images(60 if "plateau" in case else 75)  # without a score a fifth is held out
    scores = iter([0.1, 0.3, 0.2, 0.2, 0.25] * 3)  # with a patience of 0, three of them make the plateau fall
    batch_size = 4 if "accumulate" in CASES[case] else 8
    options: dict[str, Any] = {
        **CASES[case],
        "labels": y,
        "epochs": 4,
        "batch_size": batch_size,
        "augment": noise,
        "device": "cpu",
    }
    if "plateau" in case:
        options["evaluate"] = lambda _: next(scores)
    model = convolutional()
    whole = finetune(model, x, **options)
    scores = iter([0.1, 0.3, 0.2, 0.2, 0.25])
    folder: dict[str, Any] = {"checkpoint_dir": tmp_path, "save_every": 3}
    with pytest.raises(_InterruptedError):
        finetune(model, x, progress=stop_at(20), **folder, **options)
    stands = checkpoint.load(tmp_path / "last.safetensors", to_torch(model)) if "qdrop" not in case else None
    assert stands is None or (stands.step, stands.epoch, stands.step_in_epoch) == (18, 2, 2)
    np.random.seed(77)  # noqa: NPY002 - what the process drew meanwhile does not count
    random.seed(77)
    resumed = finetune(model, x, resume=True, **folder, **options)
    assert resumed.model.SerializeToString() == whole.model.SerializeToString()
    assert resumed.losses == whole.losses
    assert (resumed.best_epoch, resumed.best_score, resumed.steps) == (
        whole.best_epoch,
        whole.best_score,
        whole.steps,
    )


def test_another_way_to_compute_is_another_run(tmp_path: Path) -> None:
    x, y = images(32)
    options: dict[str, Any] = {"labels": y, "batch_size": 8, "device": "cpu", "checkpoint_dir": tmp_path}
    finetune(convolutional(), x, **options)
    with pytest.raises(QatError, match="precision 'float32', this run has 'bfloat16'"):
        finetune(
            convolutional(),
            x,
            resume=True,
            execution=Execution(precision="bfloat16"),
            **options,
        )


def test_the_generators_are_as_before_a_run() -> None:
    x, y = images(32)
    before = RandomState.capture()
    finetune(convolutional(), x, labels=y, augment=noise, device="cpu")
    after = RandomState.capture()
    assert torch.equal(before.cpu, after.cpu)
    assert before.python == after.python
    np.testing.assert_equal(before.numpy, after.numpy)


def test_a_random_state_survives_a_file() -> None:
    state = RandomState.capture()
    drawn = (torch.rand(3), np.random.random(3), random.random(), random.gauss(0, 1))  # noqa: NPY002
    RandomState.read(*state.written()).restore()
    again = (torch.rand(3), np.random.random(3), random.random(), random.gauss(0, 1))  # noqa: NPY002
    assert torch.equal(drawn[0], again[0])
    np.testing.assert_equal(drawn[1:], again[1:])


def test_a_best_that_is_ahead_of_the_checkpoint_brings_its_score(tmp_path: Path) -> None:
    """A run that was killed between the two files: the epoch is done again, and need not give the same score."""
    x, y = images(16)
    scores = iter([0.1, 0.3])
    options: dict[str, Any] = {"labels": y, "epochs": 2, "batch_size": 8, "device": "cpu", "checkpoint_dir": tmp_path}
    with pytest.raises(_InterruptedError):
        finetune(convolutional(), x, score=ScoreConfig(evaluate=lambda _: next(scores)), progress=stop_at(3), **options)
    module = to_torch(convolutional())
    ahead = Progress(best_score=0.9, best_epoch=2)
    checkpoint.load(tmp_path / "best.safetensors", module)
    checkpoint.save(tmp_path / "best.safetensors", module, progress=ahead)
    resumed = finetune(
        convolutional(),
        x,
        score=ScoreConfig(evaluate=lambda _: 0.5),
        resume=True,
        **options,
    )
    assert (resumed.best_score, resumed.best_epoch) == (0.9, 2)


class Steps(Callback):
    """Keeps the numbers of steps that are a multiple of `every`; it has no name."""

    def __init__(self, every: int) -> None:
        self.every, self.seen = every, list[int]()

    def after_step(self, step: int) -> None:
        if step % self.every == 0:
            self.seen.append(step)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": list(self.seen)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seen = list(state["seen"])


def test_callbacks_of_one_name_keep_their_own_state(tmp_path: Path) -> None:
    x, y = images(40)
    options: dict[str, Any] = {"labels": y, "epochs": 2, "batch_size": 8, "device": "cpu", "checkpoint_dir": tmp_path}
    with pytest.raises(_InterruptedError):
        finetune(convolutional(), x, callbacks=[Steps(2), Steps(3)], progress=stop_at(6), save_every=5, **options)
    resumed = [Steps(2), Steps(3)]
    finetune(convolutional(), x, callbacks=resumed, resume=True, **options)
    assert [each.seen for each in resumed] == [[*range(0, 8, 2)], [*range(0, 8, 3)]]
