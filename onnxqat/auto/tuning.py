"""Fine-tuning within what is left of a budget: the length of the run follows from the time of its first steps."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxqat.auto.budget import Budget
from onnxqat.auto.judge import Judge
from onnxqat.types import Remark

if TYPE_CHECKING:
    from torch import nn

    from onnxqat.calibration.data import Data
    from onnxqat.graph import io

PROBE = 4
"""Steps of the run that is timed; the first one is not, since it makes what the others reuse."""

FEWEST = 20
"""A shorter run is not worth its time."""

MOST_EPOCHS, MOST_STEPS_UNLABELLED = 30, 2000
"""Longer runs gain little: passes over labelled data, steps against the float model alone."""


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What stays the same between the probe and the run.

    Attributes:
        data: training samples.
        labelled: whether they have labels.
        teacher: the float model.
        judge: scores epochs on held-out samples; None leaves that to the training loop.
        seed, device: as in :func:`onnxqat.finetune`.
    """

    data: Data
    labelled: bool
    teacher: io.ModelSource
    judge: Judge | None
    seed: int
    device: str | None

    def run(self, start: Path, output: Path, budget: Budget, reserve: float) -> Remark | None:
        """Train `start` into `output` until `reserve` seconds of `budget` are left; why not, where it did not.

        Raises:
            QatError: what :func:`onnxqat.finetune` raises.
        """
        step, score, epoch = self._probe(start, output)
        steps = self._length(budget.left - reserve, step, score, epoch)
        if steps < FEWEST:
            text = f"no time to fine-tune: a step takes {step:.2g} s, and {max(budget.left, 0.0):.0f} s are left"
            return Remark(text, source="auto")
        self._finetune(start, output, max_steps=steps)
        return None

    def _length(self, seconds: float, step: float, score: float, epoch: int | None) -> int:
        """Steps that fit into `seconds`, with a score before the first and after each epoch, ended early or not."""
        each = step + (score / epoch if epoch else 0.0)
        most = MOST_EPOCHS * (epoch or MOST_STEPS_UNLABELLED) if self.labelled else MOST_STEPS_UNLABELLED
        return min(int(max(seconds - 2 * score, 0.0) / each), most) if math.isfinite(each) else 0

    def _probe(self, start: Path, output: Path) -> tuple[float, float, int | None]:
        """Seconds of a step, seconds of a score, steps of an epoch."""
        marks: list[float] = []
        scores: list[float] = []
        source = self._finetune(
            start, output, max_steps=PROBE, progress=lambda _: marks.append(time.monotonic()), scores=scores
        )
        spans = np.diff(marks)
        return float(np.median(spans)) if len(spans) else math.inf, max(scores, default=0.0), source

    def _finetune(
        self,
        start: Path,
        output: Path,
        *,
        max_steps: int,
        progress: Callable[[Any], None] | None = None,
        scores: list[float] | None = None,
    ) -> int | None:
        from onnxqat.training.batches import DataBatches
        from onnxqat.training.finetune import finetune

        source = DataBatches(self.data, seed=self.seed)

        def evaluate(module: nn.Module) -> float:
            began = time.monotonic()
            drop = _drop(self.judge, module) if self.judge is not None else 0.0
            if scores is not None:
                scores.append(time.monotonic() - began)
            return -drop

        finetune(
            start,
            source,
            teacher=self.teacher,
            max_steps=max_steps,
            evaluate=None if self.judge is None else evaluate,
            seed=self.seed,
            device=self.device,
            output=output,
            progress=progress,
        )
        return source.steps


def _drop(judge: Judge, module: Any) -> float:
    """What the module loses; it is in evaluation mode, and no gradients are kept."""
    import torch

    device = next((p.device for p in module.parameters()), torch.device("cpu"))

    def run(feeds: Any) -> dict[str, Any]:
        found = module(*[torch.from_numpy(feeds[name]).to(device) for name in module.input_names])
        outputs = found if isinstance(found, tuple) else (found,)
        return {n: np.asarray(o.detach().cpu()) for n, o in zip(module.output_names, outputs, strict=True)}

    return judge.drop(run)
