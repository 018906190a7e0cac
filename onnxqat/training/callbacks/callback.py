"""Callbacks of a training run: a log, bit widths that shrink, a term of the loss, statistics re-estimated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from onnxqat.training.data.batches import Batches
from onnxqat.training.distributed.process_context import ProcessContext
from onnxqat.training.loop.progress import Progress
from onnxqat.training.optim.moving_average import MovingAverage
from onnxqat.training.optim.schedule import Schedule


@dataclasses.dataclass(frozen=True)
class StepRecord:
    """One step that is known to be finite.

    Attributes:
        step: steps done, this one included.
        epoch: epochs done before it.
        loss: its loss, the mean over its samples, penalties included.
        gradient_norm: of all gradients together, before they are clipped.
        rates: learning rate of each parameter group, by the group's name or number.
        samples: how many it was computed from.
    """

    step: int
    epoch: int
    loss: float
    gradient_norm: float
    rates: Mapping[str, float]
    samples: int


class Run(Protocol):
    """A training run as its callbacks see it."""

    @property
    def module(self) -> nn.Module:
        """The module that is trained."""

    @property
    def batches(self) -> Batches:
        """The training data of this process."""

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer over its parameters."""

    @property
    def schedule(self) -> Schedule:
        """Learning rates by step, and the number of steps."""

    @property
    def average(self) -> MovingAverage | None:
        """The moving average, where one is kept."""

    @property
    def world(self) -> ProcessContext:
        """The processes that train together."""

    @property
    def standing(self) -> Progress:
        """Counters, losses and scores so far."""


class Callback:
    """Called by the loop at the points that its methods name. All of them do nothing here; a callback overrides some.

    Steps are counted from 0 where they are about to be done. What a callback changes from step to step belongs in its
    state, so that a resumed run ends with the same bits.

    Attributes:
        name: key of the callback's state in a checkpoint; that of the class where it is empty.
        needs_whole_weights: whether it works on whole weights only, not where a process holds shards of them.
    """

    name = ""
    needs_whole_weights = False

    @property
    def may_keep(self) -> bool:
        """Check whether a file can hold the module as it is now, so that it may be kept as the best."""
        return True

    def start(self, run: Run) -> None:
        """The run begins: on a resumed one the state is loaded; the module is on its device."""

    def restored(self, run: Run) -> None:
        """Steps were undone: parameters and the state of this callback are those of before them."""

    def before_step(self, step: int) -> None:
        """Before the forward pass of step `step`."""

    def penalty(self, step: int) -> Tensor | None:
        """A scalar, differentiable, that is added to the loss of step `step` once; None adds nothing."""
        return None

    def after_backward(self, step: int) -> None:
        """Gradients are complete and clipped; the optimizer is about to step."""

    def after_step(self, step: int) -> None:
        """The optimizer has done step `step`; scales are within their limits, the moving average is not updated yet."""

    def checked(self, records: Sequence[StepRecord]) -> None:
        """The numbers of these steps are on the host now: at once on a CPU, some steps later on a GPU."""

    def before_score(self) -> None:
        """The module, with what is to be kept in its parameters, is about to be scored and kept."""

    def after_epoch(self, epoch: int, loss: float, score: float) -> None:
        """Epoch `epoch`, counted from 1, is done, with this mean loss and score."""

    def finish(self) -> None:
        """The run has ended, also when by an error."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs: tensors and JSON values by name."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
