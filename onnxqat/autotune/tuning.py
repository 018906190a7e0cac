"""Fine-tuning within what is left of a budget: the length of the run follows from the time of its first steps."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxqat.autotune.budget import Budget
from onnxqat.autotune.scoring import Judge
from onnxqat.types import Remark

if TYPE_CHECKING:
    from torch import nn

    from onnxqat.data.data import Data
    from onnxqat.graph import io

PROBE = 4
"""Steps of the run that is timed; the first one is not, since it makes what the others reuse."""

FEWEST = 20
"""A shorter run is not worth its time."""

MOST_EPOCHS, MOST_STEPS_UNLABELLED = 30, 2000
"""Longer runs gain little: passes over labelled data, steps against the float model alone."""

SCORING, MOST_SCORES = 0.1, 50
"""Time for scores as a share of that for steps, and how many there are in a run at most."""


@dataclasses.dataclass(frozen=True)
class Tuned:
    """Outcome of a run.

    Attributes:
        trained: whether there was time for it, and the file is written.
        remark: what is worth knowing.
        cut_short: whether more time would have made it longer.
        steps: that were done.
    """

    trained: bool
    remark: Remark | None = None
    cut_short: bool = False
    steps: int = 0


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Settings shared by the probe and the run.

    Attributes:
        data: training samples.
        labelled: whether they have labels.
        teacher: the float model.
        judge: measures the loss of a module on held-out samples; None where only a file can be judged.
        drop_of: returns the loss of a deployed file.
        deploy: makes a deployed file of a trained one, and says where it is.
        target_drop: the run ends once the loss is no larger.
        seed, device: as in :func:`onnxqat.finetune`.
        better: called with a deployed file that is the best of the run so far, its loss, and the length of the run in
            steps; 0 while a run is timed.
    """

    data: Data
    labelled: bool
    teacher: io.ModelSource
    judge: Judge | None
    drop_of: Callable[[Path], float]
    deploy: Callable[[Path], Path]
    target_drop: float
    seed: int
    device: str | None
    better: Callable[[Path, float, int], None] = lambda _file, _drop, _steps: None
    _best: list[float] = dataclasses.field(default_factory=list)

    def run(self, start: Path, output: Path, budget: Budget, reserve: float) -> Tuned:
        """Train `start` into `output`, until it is good enough or `reserve` seconds of `budget` are left.

        Raises:
            QatError: what :func:`onnxqat.finetune` raises.
        """
        step, score, epoch = self._probe(start, output)
        steps = self._length(budget.left - reserve, step, score, epoch)
        if steps < FEWEST:
            text = f"no time to fine-tune: a step takes {step:.2g} s, and {max(budget.left, 0.0):.0f} s are left"
            return Tuned(False, Remark(text, source="auto"), cut_short=True)
        every = max(_steps_per_score(step, score), -(-steps // MOST_SCORES))
        score_of = functools.partial(self._score, start=start, steps=steps)
        done = self._finetune(start, output, score_of, max_steps=steps, every=every)[0]
        if done == steps:
            return Tuned(True, cut_short=steps < self._largest_length(epoch), steps=done)
        met = Remark(f"fine-tuning met the target after {done} of {steps} steps", source="auto")
        return Tuned(True, met, steps=done)

    def _length(self, seconds: float, step: float, score: float, epoch: int | None) -> int:
        """Steps that fit into `seconds`, with a score before the first, some on the way and one at the end."""
        each = step + score / _steps_per_score(step, score) if math.isfinite(step) else math.inf
        return min(int(max(seconds - 2 * score, 0.0) / each), self._largest_length(epoch)) if math.isfinite(each) else 0

    def _largest_length(self, epoch: int | None) -> int:
        return MOST_EPOCHS * (epoch or MOST_STEPS_UNLABELLED) if self.labelled else MOST_STEPS_UNLABELLED

    def _probe(self, start: Path, output: Path) -> tuple[float, float, int | None]:
        """Seconds of a step, seconds of a score, steps of an epoch."""
        marks: list[float] = []
        scores: list[float] = []

        def timed(module: nn.Module) -> float:
            """Scores the start; nothing depends on the score of so short a run."""
            if not scores:
                began = time.monotonic()
                self._score(module, start, steps=0)
                scores.append(time.monotonic() - began)
            return -math.inf

        tell = lambda _: marks.append(time.monotonic())  # noqa: E731
        _, epoch = self._finetune(start, output, timed, max_steps=PROBE, every=PROBE, progress=tell)
        spans = np.diff(marks)
        return float(np.median(spans)) if len(spans) else math.inf, scores[0], epoch

    def _score(self, module: nn.Module, start: Path, steps: int) -> float:
        """Return minus the loss of `module`.

        Without a judge, or where it is the best so far or meets the target, its file is judged too, and kept.
        """
        drop = -math.inf if self.judge is None else _drop(self.judge, module)
        if drop > self.target_drop and drop >= min(self._best, default=math.inf):
            return -drop
        from onnxqat.bridge.export.write_back import put_back

        file = self.deploy(put_back(module, start, start.with_name("scored.onnx")))
        drop = max(drop, self.drop_of(file))
        self._best.append(drop)
        self.better(file, drop, steps)
        return -drop

    def _finetune(
        self,
        start: Path,
        output: Path,
        evaluate: Callable[[nn.Module], float],
        *,
        max_steps: int,
        every: int,
        progress: Callable[[Any], None] | None = None,
    ) -> tuple[int, int | None]:
        """Steps that were done, and steps of an epoch."""
        from onnxqat.training.config import ScoreConfig
        from onnxqat.training.data.batches import DataBatches
        from onnxqat.training.finetune import finetune

        source = DataBatches(self.data, seed=self.seed)
        result = finetune(
            start,
            source,
            teacher=self.teacher,
            max_steps=max_steps,
            score=ScoreConfig(evaluate=evaluate, every=every, target=-self.target_drop),
            seed=self.seed,
            device=self.device,
            output=output,
            progress=progress,
        )
        return result.steps, source.steps


def _steps_per_score(step: float, score: float) -> int:
    """Steps between two scores, given the seconds of each."""
    return max(1, math.ceil(score / (SCORING * step))) if step > 0 and math.isfinite(step) else 1


def _drop(judge: Judge, module: Any) -> float:
    """Return the loss in percent of `module`, which the caller has put into evaluation mode without gradients."""
    import torch

    device = next((p.device for p in module.parameters()), torch.device("cpu"))

    def run(feeds: Any) -> dict[str, Any]:
        found = module(*[torch.from_numpy(feeds[name]).to(device) for name in module.input_names])
        outputs = found if isinstance(found, tuple) else (found,)
        return {n: np.asarray(o.detach().cpu()) for n, o in zip(module.output_names, outputs, strict=True)}

    return judge.drop(run)
