"""The training loop of :func:`onnxqat.finetune` as one call; any other trainer may take its place."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from onnxqat.training.data.batches import Batches
from onnxqat.training.loop.loop import Fitted, Loop
from onnxqat.training.objective.losses import Loss, Objective
from onnxqat.training.optim.schedule import Schedule
from onnxqat.training.schedules import cosine


def fit(
    module: nn.Module,
    batches: Batches,
    optimizer: Optimizer,
    *,
    total_steps: int,
    warmup_steps: int = 0,
    schedule: Schedule | None = None,
    loss: Objective | None = None,
    resume: bool = False,
    **options: Any,
) -> Fitted:
    """Train `module` on `batches`: :class:`onnxqat.training.loop.loop.Loop` as one call.

    Args:
        module: what is trained.
        batches: the training data.
        optimizer: over the module's parameters.
        total_steps: length of the run.
        warmup_steps: of the cosine schedule.
        schedule: another schedule, in place of `total_steps` and `warmup_steps`.
        loss: None: ``Loss()``.
        resume: go on from the last checkpoint.
        options: other attributes of the loop.
    """
    plan = cosine.Schedule(total_steps, warmup_steps) if schedule is None else schedule
    loop = Loop(module=module, batches=batches, optimizer=optimizer, loss=loss or Loss(), schedule=plan, **options)
    return loop.run(resume=resume)
