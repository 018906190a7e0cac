"""The training loop in plain torch, under :func:`onnxqat.finetune`; any other trainer may take its place."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from onnxqat.bridge.state import quantizers
from onnxqat.errors import DataError, QatError
from onnxqat.training import checkpoint
from onnxqat.training.batches import Batch, Batches
from onnxqat.training.checkpoint import Progress
from onnxqat.training.holdout import size
from onnxqat.training.losses import Loss
from onnxqat.training.optimizers import ScaleGuard
from onnxqat.training.schedule import CosineSchedule

Augment = Callable[[dict[str, Tensor]], dict[str, Tensor]]
Teacher = Callable[..., Any]
Precision = Literal["float32", "bfloat16"]

CUDA_CHECK_INTERVAL = 8
"""Steps between two looks at the loss on a device that one has to wait for."""


@dataclasses.dataclass(frozen=True)
class Report:
    """What a progress callback is told after each step: all numbers are of the steps done so far."""

    step: int
    total_steps: int
    epoch: int
    loss: float
    learning_rate: float


@dataclasses.dataclass
class Fitted:
    """Result of :func:`fit`.

    Attributes:
        progress: steps, epochs, losses, best epoch.
        best: state dict of the best epoch on CPU; of the last when no epoch was finished.
    """

    progress: Progress
    best: dict[str, Tensor]


class MovingAverage:
    """Exponential moving average of the trainable parameters, scales included.

    Args:
        module: whose parameters are averaged.
        decay: share of the average that stays at each step; the first steps use ``(1 + step) / (10 + step)``, so that
            the start is forgotten.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.values = {k: p.detach().clone() for k, p in module.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def update(self, module: nn.Module, step: int) -> None:
        """Take in the parameters after step `step`, counted from 1."""
        weight = 1.0 - min(self.decay, (1 + step) / (10 + step))
        for key, parameter in module.named_parameters():
            if key in self.values:
                self.values[key].lerp_(parameter, weight)

    @contextlib.contextmanager
    def applied(self, module: nn.Module) -> Any:
        """The averages in place of the parameters, for the length of a ``with`` block."""
        parameters = {k: p for k, p in module.named_parameters() if k in self.values}
        kept = {key: p.detach().clone() for key, p in parameters.items()}
        with torch.no_grad():
            for key, parameter in parameters.items():
                parameter.copy_(self.values[key])
        try:
            yield
        finally:
            with torch.no_grad():
                for key, parameter in parameters.items():
                    parameter.copy_(kept[key])


@dataclasses.dataclass(kw_only=True)
class Loop:
    """Everything that one run consists of; :meth:`run` runs it.

    Attributes:
        module: called with the inputs in the order of its ``input_names`` (or of the batch).
        batches: the training data.
        loss: what is minimized.
        optimizer: over the module's parameters.
        schedule: learning rate by step; its ``total_steps`` end the run.
        teacher: gives the outputs to imitate; run in ``no_grad``.
        augment: applied to the inputs of each batch, on the device, before student and teacher see them; draws from
            torch's random generator.
        precision: ``"bfloat16"`` runs the module under autocast (quantizers stay float32).
        average: moving average; evaluated and kept as the best in place of the weights.
        evaluate: score of the module before the first step and after each epoch, higher is better.
        scored: batches whose mean loss, negated, is the score where there is no `evaluate`: the last epoch that beats
            the start counts as the best. Without either, the score is minus the epoch's mean training loss.
        gradient_norm: gradients are scaled down to this norm; None leaves them.
        progress: called after each step.
        folder: ``last.safetensors`` (after each epoch and at the end) and ``best.safetensors`` are written here.
        settings: what a resumed run has to agree with.
    """

    module: nn.Module
    batches: Batches
    loss: Loss
    optimizer: Optimizer
    schedule: CosineSchedule
    teacher: Teacher | None = None
    augment: Augment | None = None
    precision: Precision = "float32"
    average: MovingAverage | None = None
    evaluate: Callable[[nn.Module], float] | None = None
    scored: Sequence[Batch] = ()
    gradient_norm: float | None = None
    progress: Callable[[Report], None] | None = None
    folder: Path | None = None
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    def run(self, *, resume: bool = False) -> Fitted:
        """Train until the schedule ends.

        Args:
            resume: go on from ``last.safetensors`` where it exists; the run continues bit for bit on CPU.

        Raises:
            QatError: ``training-diverged`` names the step and the first value that is not finite;
                ``checkpoint-mismatch``.
            DataError: what is wrong with a batch.
        """
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
        self._device = next(self.module.parameters()).device
        self._state = Progress()
        self._best: dict[str, Tensor] = {}
        self._pending: list[tuple[int, Tensor]] = []
        if resume:
            self._resume()
        self._guard = ScaleGuard(self.module)
        limited = self._state.limited_scales
        if self._state.step == 0 and self.has_score:
            self._rate()
        self.module.train()
        while self._state.step < self.schedule.total_steps:
            self._run_epoch()
            self._state.limited_scales = limited + int(self._guard.limited)
            if self._state.step_in_epoch == 0:
                self._finish_epoch()
            self._save("last.safetensors")
        self.module.eval()
        if not self._best:
            self._keep_best()
        return Fitted(self._state, self._best)

    def _run_epoch(self) -> None:
        state = self._state
        source = itertools.islice(self.batches.epoch(state.epoch), state.step_in_epoch, None)
        for batch in source:
            if state.step >= self.schedule.total_steps:
                # There is more: the epoch is not finished.
                self._check_losses()
                return
            self._step(batch.to(self._device))
        self._check_losses()
        if not state.step_in_epoch:
            raise DataError("data-missing", f"the training data gave no batch in epoch {state.epoch + 1}")
        state.losses.append(state.loss_sum / state.step_in_epoch)
        state.epoch += 1
        state.step_in_epoch, state.loss_sum = 0, 0.0

    def _step(self, batch: Batch) -> None:
        if self.augment is not None:
            batch = Batch(self.augment(batch.inputs), batch.labels)
        self.schedule.apply(self.optimizer, self._state.step)
        self.optimizer.zero_grad(set_to_none=True)
        target = None
        if self.teacher is not None:
            with torch.no_grad():
                target = call(self.teacher, batch)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            outputs = call(self.module, batch)
        loss = self.loss(outputs, batch.labels, target)
        self._batch = batch
        self._pending.append((self._state.step, loss.detach()))
        if self._device.type == "cpu" or len(self._pending) >= CUDA_CHECK_INTERVAL:
            self._check_losses()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.gradient_norm is not None:
            nn.utils.clip_grad_norm_(self.module.parameters(), self.gradient_norm)
        self._guard.before()
        self.optimizer.step()
        self._guard.after()
        self._state.step += 1
        self._state.step_in_epoch += 1
        if self.average is not None:
            self.average.update(self.module, self._state.step)
        if self.progress is not None:
            self._report(loss)

    def _report(self, loss: Tensor) -> None:
        assert self.progress is not None
        state, rate = self._state, float(self.optimizer.param_groups[0]["lr"])
        self.progress(Report(state.step, self.schedule.total_steps, state.epoch, float(loss.detach()), rate))

    def _check_losses(self) -> None:
        """Add up the losses that are pending; the device is waited for here and nowhere else."""
        for step, loss in self._pending:
            value = float(loss)
            if not math.isfinite(value):
                raise QatError(
                    "training-diverged",
                    f"the loss is {value} at step {step}; {first_non_finite(self.module, self._batch)}",
                    hint="lower the learning rate, or that of the scales, or lengthen the warm-up",
                )
            self._state.loss_sum += value
        self._pending.clear()

    @property
    def has_score(self) -> bool:
        """Whether the module itself is scored, so that its start can be compared with each epoch."""
        return self.evaluate is not None or bool(self.scored)

    def _finish_epoch(self) -> None:
        averaged = self.average.applied(self.module) if self.average is not None else contextlib.nullcontext()
        with averaged:
            self._rate()

    def _rate(self) -> None:
        """Score the module as it is, and keep it where it is the best so far; the start is epoch 0.

        Scored by the loss on a few samples, neighbouring epochs rank by chance, and the last, with the lowest learning
        rate, is the one to trust: each epoch that beats the start is then kept in place of the one before.
        """
        state = self._state
        score = self._score() if self.has_score else -state.losses[-1]
        if state.epoch == 0:
            state.start_score = score
        bar = state.start_score if self.evaluate is None and self.scored else state.best_score
        if bar is None or state.epoch == 0 or score > bar:
            state.best_score, state.best_epoch = score, state.epoch
            self._keep_best(applied=True)
            if self.folder is not None:
                checkpoint.save(self.folder / "best.safetensors", self.module, progress=state)

    def _score(self) -> float:
        self.module.eval()
        with torch.no_grad():
            score = float(self.evaluate(self.module)) if self.evaluate is not None else -self._mean_loss()
        self.module.train()
        return score

    def _mean_loss(self) -> float:
        """Mean loss over the samples of `scored`."""
        total, count = 0.0, 0
        for held in self.scored:
            batch = held.to(self._device)
            target = None if self.teacher is None else call(self.teacher, batch)
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
                outputs = call(self.module, batch)
            total += float(self.loss(outputs, batch.labels, target)) * size(batch)
            count += size(batch)
        return total / max(count, 1)

    def _keep_best(self, *, applied: bool = False) -> None:
        averaged = contextlib.nullcontext() if applied or self.average is None else self.average.applied(self.module)
        with averaged:
            self._best = {k: v.detach().to("cpu", copy=True) for k, v in self.module.state_dict().items()}

    def _save(self, name: str) -> None:
        if self.folder is not None:
            average = None if self.average is None else self.average.values
            checkpoint.save(
                self.folder / name,
                self.module,
                optimizer=self.optimizer,
                average=average,
                progress=self._state,
                settings=self.settings,
            )

    def _resume(self) -> None:
        if self.folder is None or not (self.folder / "last.safetensors").exists():
            return
        self._state = checkpoint.load(
            self.folder / "last.safetensors",
            self.module,
            optimizer=self.optimizer,
            average=None if self.average is None else self.average.values,
            settings=self.settings,
            random=True,
        )
        best = self.folder / "best.safetensors"
        if self._state.best_score is not None and best.exists():
            holder = copy.deepcopy(self.module)
            checkpoint.load(best, holder)
            self._best = {key: value.detach().cpu() for key, value in holder.state_dict().items()}


def fit(
    module: nn.Module,
    batches: Batches,
    optimizer: Optimizer,
    *,
    total_steps: int,
    warmup_steps: int = 0,
    loss: Loss | None = None,
    resume: bool = False,
    **options: Any,
) -> Fitted:
    """Train `module` on `batches`: :class:`Loop` as one call; `options` are its other attributes."""
    schedule = CosineSchedule(total_steps, warmup_steps)
    loop = Loop(module=module, batches=batches, optimizer=optimizer, loss=loss or Loss(), schedule=schedule, **options)
    return loop.run(resume=resume)


def call(module: Callable[..., Any], batch: Batch) -> Sequence[Tensor]:
    """The outputs of `module` for `batch`, always a sequence."""
    names = getattr(module, "input_names", None) or tuple(batch.inputs)
    result = module(*(batch.inputs[name] for name in names))
    return (result,) if isinstance(result, Tensor) else tuple(result)


def first_non_finite(module: nn.Module, batch: Batch) -> str:
    """What is not finite, in the order in which to suspect it: inputs, parameters, quantized tensors in graph order."""
    for name, value in batch.inputs.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            return f"input {name!r} is not finite"
    names = getattr(module, "parameter_names", {})
    tensors = {f"{path}.scale": q.tensor for path, q in quantizers(module)}
    for key, parameter in module.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            if key in tensors:
                return f"the scale of tensor {tensors[key]!r} is not finite"
            return f"parameter {names.get(key, key)!r} is not finite"
    found: list[str] = []

    def hook(quantizer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if not found and not bool(torch.isfinite(arguments[0]).all()):
            found.append(str(quantizer.tensor))

    handles = [q.register_forward_pre_hook(hook) for _, q in quantizers(module)]
    try:
        with torch.no_grad():
            call(module, batch)
    finally:
        for handle in handles:
            handle.remove()
    return f"tensor {found[0]!r} is the first that is not finite" if found else "inputs and parameters are finite"
