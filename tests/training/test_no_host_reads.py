"""A training step never asks the device for a number: on CUDA each question would wait for all that is queued."""

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.speed.relu_fusion import fuse_relu
from onnxqat.training import methods
from onnxqat.training.data.batches import Batch
from onnxqat.training.execution.execution import Execution
from onnxqat.training.loop import pending
from onnxqat.training.loop.guarded_steps import GuardedSteps
from onnxqat.training.loop.step import Step
from onnxqat.training.objective.losses import Loss
from onnxqat.training.optim import optimizers
from onnxqat.training.optim.moving_average import MovingAverage
from tests.repetitions import pairs
from tests.training.grouped import finetune
from tests.training.nets import convolutional, images


class OnMeta(Execution):
    """Autocast does not know the device; in float32 it does nothing."""

    def autocast(self, device: torch.device) -> Any:
        return contextlib.nullcontext()


@pytest.mark.parametrize(("method", "rematerialize"), pairs(methods.names(), [False, True]))
def test_a_step_runs_where_there_are_no_numbers(method: str, rematerialize: bool) -> None:
    """Tensors on the device "meta" have shapes and no values: whoever reads one fails."""
    module = to_torch(convolutional(), quantizer_factory=methods.factory(method, limit_steps=False)).to("meta").train()
    teacher = to_torch(convolutional()).to("meta")
    optimizer = optimizers.make("adamw", to_torch(convolutional()), learning_rate=1e-3)
    groups = [{**group, "params": []} for group in optimizer.param_groups]
    groups[0]["params"] = [p for p in module.parameters() if p.requires_grad]
    step = Step(
        module=module,
        forward=fuse_relu(module),
        loss=Loss(),
        optimizer=torch.optim.AdamW(groups[:1]),
        teacher=teacher,
        execution=OnMeta(rematerialize=rematerialize),
    )
    x, labels = images(8)
    batch = Batch({"image": torch.from_numpy(x)}, torch.from_numpy(labels))
    average = MovingAverage(module, 0.99)
    for number in range(2):
        loss, norm = step.gradients([batch], number)
        step.update()
        average.update(module, number + 1)
    assert loss.is_meta
    assert norm.is_meta
    with pytest.raises(RuntimeError, match="meta"):
        float(loss)


@pytest.mark.parametrize("shape", [(2, 500, 4), (2, 4, 16, 16), (6, 4)])
def test_the_loss_against_a_teacher_reads_nothing(shape: tuple[int, ...]) -> None:
    student, teacher = (torch.empty(shape, device="meta") for _ in range(2))
    assert Loss(distance="mse")([student], None, [teacher]).is_meta


READS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "unique")


class Count(TorchDispatchMode):
    """Operators that give the host a number, or a shape that depends on one."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name in ("index", "index_put", "index_put_") and any(
            isinstance(i, Tensor) and i.dtype is torch.bool for i in args[1]
        )
        if by_mask or name.startswith(READS):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_steps_of_a_run_are_looked_at_together(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop as on CUDA, where losses are looked at every few steps: the steps between read nothing.

    In float16 torch's scaler of the loss reads whether a gradient overflowed, once in each step; its
    own two numbers are kept before the first step behind a look, when nothing is queued.
    """
    reads: list[list[str]] = []
    do, prepare = GuardedSteps.do, pending.PendingSteps.__init__

    def counted(self: GuardedSteps, batches: Any) -> None:
        with Count() as count:
            do(self, batches)
        reads.append(count.found)

    def as_on_cuda(self: pending.PendingSteps, device: torch.device) -> None:
        prepare(self, device)
        self.interval = pending.CUDA_CHECK_INTERVAL

    monkeypatch.setattr(GuardedSteps, "do", counted)
    monkeypatch.setattr(pending.PendingSteps, "__init__", as_on_cuda)
    x, labels = images(48)
    # Adam counts its steps in tensors on the host, on CUDA too; SGD counts nothing.
    options: dict[str, Any] = {
        "optimizer": "sgd",
        "ema": 0.9,
        "gradient_norm": 1.0,
        "device": "cpu",
        "rematerialize": True,
        "precision": precision,
    }
    finetune(convolutional(), x, labels=labels, teacher=convolutional(), epochs=2, batch_size=16, **options)
    counts = [1, 1, 1, 3, 1, 1] if precision == "float16" else [0] * 6
    assert reads == [["_local_scalar_dense"] * count for count in counts]


def test_the_count_counts() -> None:
    x = torch.tensor([1.0, 2.0])
    with Count() as count:
        float(x.sum())
        x[x > 1.0]
        nn.functional.relu(x)
    assert count.found == ["_local_scalar_dense", "index"]
