"""Plateau: the learning rate falls when the score stops rising (``torch.optim.lr_scheduler.ReduceLROnPlateau``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from onnxqat.training.optim.schedule import WarmedUp


@dataclasses.dataclass
class Schedule(WarmedUp):
    """A factor after each run of epochs, or of scores where there are others, without a better score.

    Attributes:
        gamma: the factor; torch calls it ``factor``.
        patience: epochs without a better score that are let pass. Fine-tuning is short: 2, where torch has 10.
        threshold: part of the best score that a better one has to exceed it by.
        final_factor: the learning rate falls no lower than this factor.
    """

    gamma: float = 0.1
    patience: int = 2
    threshold: float = 1e-4
    final_factor: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._now, self._best, self._waited = 1.0, None, 0  # type: tuple[float, float | None, int]

    def decayed(self, done: int, steps: int) -> float:
        """See the base class."""
        return self._now

    def observe(self, score: float) -> None:
        """The module has this score, higher is better; it may be negative, as minus a loss is."""
        if self._best is None or score > self._best + self.threshold * abs(self._best):
            self._best, self._waited = score, 0
            return
        self._waited += 1
        if self._waited > self.patience:
            self._now, self._waited = max(self._now * self.gamma, self.final_factor), 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs."""
        return {"factor": self._now, "best": self._best, "waited": self._waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave."""
        self._now, self._best, self._waited = state["factor"], state["best"], state["waited"]
