"""Penalty that the method of a run adds to the loss, such as AdaRound's rounding regularizer."""

from __future__ import annotations

from torch import Tensor

from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.training.callbacks.callback import Callback, Run


class MethodPenalty(Callback):
    """Sum of :meth:`onnxqat.bridge.quantizers.fake_quantize.FakeQuantize.penalty` over all quantizers.

    Args:
        total_steps: length of the run.
    """

    name = "method_penalty"

    def __init__(self, total_steps: int) -> None:
        self._total = max(total_steps, 1)
        self._quantizers: list[FakeQuantize] = []

    def start(self, run: Run) -> None:
        """See the base class."""
        self._quantizers = [q for _, q in quantizers(run.module) if type(q).penalty is not FakeQuantize.penalty]

    def penalty(self, step: int) -> Tensor | None:
        """See the base class."""
        found = [p for q in self._quantizers if (p := q.penalty(step / self._total)) is not None]
        return sum(found[1:], found[0]) if found else None
