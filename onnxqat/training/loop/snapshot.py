"""The state of a run at one moment, to go back to when a step turns out not to be finite."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.training.loop.checkpoint import Stateful
from onnxqat.training.loop.progress import Progress
from onnxqat.training.loop.random_state import RandomState
from onnxqat.training.loop.step import Step
from onnxqat.training.optim.moving_average import MovingAverage


def touched(module: nn.Module) -> list[Tensor]:
    """List the tensors that a forward pass may change: saved float tensors without a gradient, and zero points."""
    kept = set(module.state_dict())
    held: dict[str, Tensor] = {**dict(module.named_buffers()), **dict(module.named_parameters())}
    floats = [v for key, v in held.items() if key in kept and v.is_floating_point() and not v.requires_grad]
    return floats + [q.zero_point for _, q in quantizers(module)]


class Forward:
    """The values of what :func:`touched` names, and the state of the random generators, before a forward pass."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._held = [(value, value.detach().clone()) for value in tensors]
        self.random = RandomState.capture()

    @torch.no_grad()
    def restore(self) -> None:
        """Undo what forward passes did since then; the random generators stay as they are."""
        for value, before in self._held:
            value.copy_(before)


class Snapshot:
    """All that a run consists of: parameters, buffers, optimizer, average, random state, progress, and `stateful`."""

    def __init__(
        self, step: Step, average: MovingAverage | None, stateful: Mapping[str, Stateful], progress: Progress
    ) -> None:
        tensors = [*step.module.parameters(), *step.module.buffers(), step.guard.limited]
        tensors += [] if average is None else list(average.values.values())
        self._tensors = [(value, value.detach().clone()) for value in tensors]
        self._optimizer = (step.optimizer, _copied_tensors(step.optimizer.state_dict()))
        self._stateful = [(keeper, copy.deepcopy(dict(keeper.state_dict()))) for keeper in stateful.values()]
        self._progress = (progress, copy.deepcopy(progress))
        self._random = RandomState.capture()

    @torch.no_grad()
    def restore(self) -> None:
        """Make everything what it was; once, because the optimizer takes the copies."""
        for value, before in self._tensors:
            value.copy_(before)
        optimizer, state = self._optimizer
        optimizer.load_state_dict(state)
        for keeper, held in self._stateful:
            keeper.load_state_dict(held)
        progress, before_it = self._progress
        for field in dataclasses.fields(progress):
            setattr(progress, field.name, getattr(before_it, field.name))
        self._random.restore()


def _copied_tensors(value: Any) -> Any:
    """`value` with copies of its tensors on their devices."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied_tensors(entry) for key, entry in value.items()}
    return [_copied_tensors(entry) for entry in value] if isinstance(value, list) else value
