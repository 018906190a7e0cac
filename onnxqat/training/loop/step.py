"""Training step: teacher, forward pass, loss, backward pass, clipping, update."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from onnxqat.errors import UsageError
from onnxqat.training.callbacks.callback import Callback
from onnxqat.training.data.batches import Batch
from onnxqat.training.data.holdout import size
from onnxqat.training.distributed.process_context import ProcessContext
from onnxqat.training.execution.execution import Execution
from onnxqat.training.loop.collapse import Variation
from onnxqat.training.loop.random_state import RandomState
from onnxqat.training.loop.sample_losses import SampleLosses
from onnxqat.training.objective.features import FeatureLoss
from onnxqat.training.objective.losses import Loss, Objective
from onnxqat.training.optim.optimizers import ScaleGuard

Augment = Callable[[dict[str, Tensor]], dict[str, Tensor]]
Teacher = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Seen:
    """Inputs of a forward pass.

    Attributes:
        batch: on the device, augmented.
        target: outputs of the teacher.
        random: state of the random generators before the student's forward pass.
    """

    batch: Batch
    target: Sequence[Tensor] | None
    random: RandomState


@dataclasses.dataclass(frozen=True)
class Scored:
    """Loss on held samples, and the variation of outputs over them.

    Attributes:
        loss: mean over samples.
        losses: of each of them (:mod:`onnxqat.training.loop.sample_losses`).
        outputs: variation of each output (:mod:`onnxqat.training.loop.collapse`).
        teacher: the same of the teacher's; empty without one.
    """

    loss: float
    losses: list[float]
    outputs: list[float | None]
    teacher: list[float | None]


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
        callbacks: may add to the loss, and are told.
        world: the processes that train together.
    """

    module: nn.Module
    forward: nn.Module
    loss: Objective
    optimizer: Optimizer
    teacher: Teacher | None = None
    augment: Augment | None = None
    execution: Execution = dataclasses.field(default_factory=Execution)
    callbacks: Sequence[Callback] = ()
    world: ProcessContext = dataclasses.field(default_factory=ProcessContext)

    def __post_init__(self) -> None:
        self.device = next(self.module.parameters()).device
        self.guard = ScaleGuard(self.module)
        self.scaler = self.execution.scaler(self.device, self.world.scaler_type)
        self.seen: list[Seen] = []
        self._held_labels: Tensor | None = None  # of the prepared batch, where they came from
        self._watched: tuple[Variation, Variation] | None = None  # of the outputs and the teacher's, while scoring
        self._sample_losses = SampleLosses()  # while scoring
        self._names: tuple[str, ...] | None = getattr(self.module, "input_names", None)
        compiled = self.execution.compiled(self.execution.segmented(self.forward))
        self._training_forward = self.world.wrap(compiled)

    def prepared(self, batch: Batch) -> Batch:
        """`batch` on the device, augmented."""
        self._held_labels = batch.labels
        batch = self.execution.inputs(batch.to(self.device))
        return batch if self.augment is None else dataclasses.replace(batch, inputs=self.augment(batch.inputs))

    def target(self, batch: Batch) -> Sequence[Tensor] | None:
        """Return the teacher's outputs for a prepared batch; None without a teacher.

        Raises:
            UsageError: ``option-invalid`` where it cannot compute on the inputs.
        """
        return None if self.teacher is None else ask(self.teacher, batch, self._names)

    def loss_of(self, forward: nn.Module, batch: Batch, target: Sequence[Tensor] | None) -> Tensor:
        """The loss of a prepared batch, without penalties: a scalar."""
        with self.execution.autocast(self.device), self.execution.saving(self.device):
            outputs = call(forward, batch, self._names)
        if self._watched is not None:
            for variation, seen in zip(self._watched, (outputs, target), strict=True):
                if seen is not None and all(isinstance(value, Tensor) for value in seen):
                    variation.add(seen, size(batch) if batch.weight else 0)
        labels, self._held_labels = self._held_labels, None
        if labels is not None and labels.device.type == "cpu" and isinstance(self.loss, (Loss, FeatureLoss)):
            self.loss.check_labels(outputs, labels)
        loss = self.loss(outputs, batch.labels, target)
        if self._watched is not None:
            samples = size(batch) if batch.weight else 0
            self._sample_losses.add(self.loss, outputs, batch.labels, target, samples=samples, whole=loss)
        return loss

    def gradients(self, batches: Sequence[Batch], step: int, *, keep: bool = False) -> tuple[Tensor, Tensor]:
        """Compute the gradients of one step and clip them.

        Args:
            batches: of this step, as they come from the data; their gradients are those of one large batch.
            step: its number, for penalties.
            keep: keep what the forward passes were given in :attr:`seen`.

        Returns:
            The loss and the norm of the gradients before clipping, scalars on the device.
        """
        self.optimizer.zero_grad(set_to_none=True)
        self.seen = []
        total = max(1, sum(batch.all_samples for batch in batches))
        loss = torch.zeros((), device=self.device)
        for index, batch in enumerate(batches):
            is_last = index + 1 == len(batches)
            share = batch.weight * (batch.all_samples / total)
            with contextlib.nullcontext() if is_last else self.world.accumulating(self._training_forward):
                loss += self._backward(self.prepared(batch), share, step if is_last else None, keep=keep)
        self.world.finish(self._training_forward)
        self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        norm = self.world.norm(gradients)
        if self.execution.gradient_norm is not None:
            self.world.clip(gradients, self.execution.gradient_norm, norm)
        return self.world.total(loss) / self.world.size, norm

    def _backward(self, batch: Batch, share: float, step: int | None, *, keep: bool) -> Tensor:
        """Add the gradients of `share` of the loss of a prepared batch, and of the penalties of `step`; the sum."""
        target = self.target(batch)
        if keep:
            self.seen.append(Seen(batch, target, RandomState.capture()))
        try:
            loss = self.loss_of(self._training_forward, batch, target) * share
        except RuntimeError as error:
            refused = self.execution.explained(error)
            if refused is None:
                raise
            raise refused from error
        for callback in self.callbacks if step is not None else ():
            penalty = callback.penalty(step or 0)
            loss = loss if penalty is None else loss + penalty
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def update(self) -> None:
        """Let the optimizer step, and keep scales within their limits."""
        self.guard.before()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.guard.after()

    @torch.no_grad()
    def mean_loss(self, batches: Sequence[Batch]) -> Scored:
        """Mean loss over the samples of `batches`, not augmented, in all processes; the module is as it is."""
        self._watched, self._sample_losses = (Variation(), Variation()), SampleLosses()
        total = torch.zeros(2, dtype=torch.float64, device=self.device)
        for held in batches:
            self._held_labels = held.labels
            batch = self.execution.inputs(held.to(self.device))
            samples = size(batch) if batch.weight else 0
            total[0] += self.loss_of(self.forward, batch, self.target(batch)).double() * samples
            total[1] += samples
        total = self.world.total(total)
        outputs, teacher = (one.values(self.world, self.device) for one in self._watched)
        losses = self._sample_losses.values(self.world, self.device)
        self._watched, self._sample_losses = None, SampleLosses()
        return Scored(float(total[0] / total[1].clamp_min(1)), losses, outputs, teacher)


def ask(teacher: Teacher, batch: Batch, names: Sequence[str] | None) -> Any:
    """Return the outputs of `teacher` for a prepared batch.

    Raises:
        UsageError: ``option-invalid`` where it cannot compute on the inputs.
    """
    try:
        with torch.no_grad():
            return call(teacher, batch, names)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        given = ", ".join(f"{name} {list(value.shape)}" for name, value in batch.inputs.items())
        raise UsageError(
            "option-invalid",
            f"the teacher cannot compute on the model's inputs, {given}: {str(error).splitlines()[0][:200]}",
            hint="a teacher takes the inputs of the model",
        ) from error


def call(module: Callable[..., Any], batch: Batch, names: Sequence[str] | None = None) -> Sequence[Tensor]:
    """The outputs of `module` for `batch`, always a sequence; inputs in the order of `names`, or of the module's own."""
    names = names or getattr(module, "input_names", None) or tuple(batch.inputs)
    result = module(*(batch.inputs[name] for name in names))
    return (result,) if isinstance(result, Tensor) else tuple(result)
