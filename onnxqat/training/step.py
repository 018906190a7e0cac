"""What one step consists of: teacher, forward pass, loss, backward pass, clipping, update."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from onnxqat.training.batches import Batch
from onnxqat.training.holdout import size
from onnxqat.training.losses import Objective
from onnxqat.training.optimizers import ScaleGuard
from onnxqat.training.part import Part
from onnxqat.training.world import World

Augment = Callable[[dict[str, Tensor]], dict[str, Tensor]]
Teacher = Callable[..., Any]
Precision = Literal["float32", "bfloat16"]


@dataclasses.dataclass(frozen=True)
class Execution:
    """How a step is computed.

    Attributes:
        precision: ``"bfloat16"`` runs the module under autocast (quantizers stay float32).
        gradient_norm: gradients are scaled down to this norm; None leaves them.
    """

    precision: Precision = "float32"
    gradient_norm: float | None = None


@dataclasses.dataclass(kw_only=True)
class Step:
    """Computes gradients from batches and updates the parameters.

    Attributes:
        module: what is trained.
        forward: what is called for its outputs: `module`, or a module around it that, say, returns inner tensors too.
        loss: of outputs, labels and the teacher's outputs.
        optimizer: over the parameters of `module`.
        teacher: gives the outputs to imitate; run in ``no_grad``.
        augment: applied to the inputs of each batch, on the device, before student and teacher see them.
        execution: how it is computed.
        parts: may add to the loss, and are told.
        world: the processes that train together.
    """

    module: nn.Module
    forward: nn.Module
    loss: Objective
    optimizer: Optimizer
    teacher: Teacher | None = None
    augment: Augment | None = None
    execution: Execution = dataclasses.field(default_factory=Execution)
    parts: Sequence[Part] = ()
    world: World = dataclasses.field(default_factory=World)

    def __post_init__(self) -> None:
        self.device = next(self.module.parameters()).device
        self.guard = ScaleGuard(self.module)
        self._names: tuple[str, ...] | None = getattr(self.module, "input_names", None)
        self._training_forward = self.world.wrap(self.forward)

    def prepared(self, batch: Batch) -> Batch:
        """`batch` on the device, augmented."""
        batch = batch.to(self.device)
        return batch if self.augment is None else dataclasses.replace(batch, inputs=self.augment(batch.inputs))

    def loss_of(self, forward: nn.Module, batch: Batch) -> Tensor:
        """The loss of a prepared batch, without penalties: a scalar."""
        target = None
        if self.teacher is not None:
            with torch.no_grad():
                target = call(self.teacher, batch, self._names)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.execution.precision == "bfloat16"):
            outputs = call(forward, batch, self._names)
        return self.loss(outputs, batch.labels, target)

    def gradients(self, batch: Batch, step: int) -> tuple[Tensor, Tensor]:
        """Compute the gradients of a prepared batch and clip them.

        Returns:
            The loss and the norm of the gradients before clipping, scalars on the device.
        """
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss_of(self._training_forward, batch) * batch.weight
        for part in self.parts:
            penalty = part.penalty(step)
            loss = loss if penalty is None else loss + penalty
        loss.backward()  # type: ignore[no-untyped-call]
        self.world.finish(self._training_forward)
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        norm = self.world.norm(gradients)
        if self.execution.gradient_norm is not None:
            self.world.clip(gradients, self.execution.gradient_norm, norm)
        return self.world.total(loss.detach()) / self.world.size, norm

    def update(self) -> None:
        """Let the optimizer step, and keep scales within their limits."""
        self.guard.before()
        self.optimizer.step()
        self.guard.after()

    @torch.no_grad()
    def mean_loss(self, batches: Sequence[Batch]) -> float:
        """Mean loss over the samples of `batches`, not augmented, in all processes; the module is as it is."""
        total = torch.zeros(2, dtype=torch.float64, device=self.device)
        for held in batches:
            batch = held.to(self.device)
            samples = size(batch) if batch.weight else 0
            total[0] += self.loss_of(self.forward, batch).double() * samples
            total[1] += samples
        total = self.world.total(total)
        return float(total[0] / total[1].clamp_min(1))


def call(module: Callable[..., Any], batch: Batch, names: Sequence[str] | None = None) -> Sequence[Tensor]:
    """The outputs of `module` for `batch`, always a sequence; inputs in the order of `names`, or of the module's own."""
    names = names or getattr(module, "input_names", None) or tuple(batch.inputs)
    result = module(*(batch.inputs[name] for name in names))
    return (result,) if isinstance(result, Tensor) else tuple(result)
