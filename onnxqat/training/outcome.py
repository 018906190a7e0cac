"""Remarks about how a run went: what it is scored on, whether it helped, diverged or collapsed, how long it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import nn

from onnxqat.training.data.datasets import TrainingData
from onnxqat.training.loop.progress import Progress
from onnxqat.training.optim import learning_rates, run_length
from onnxqat.training.options import Options
from onnxqat.types import Remark

GROWN = 1.5
"""Growth of the loss over a run from which it counts as diverged: the noise of a few samples is less."""


def remarks(
    module: nn.Module, given: Options, data: TrainingData, progress: Progress, errors: Mapping[int, float]
) -> tuple[Remark, ...]:
    """Find what is worth knowing about a run that has ended.

    Args:
        module: what was trained.
        given: the options.
        data: what it was trained and scored on.
        progress: where the run stands.
        errors: index of an output -> its error at the start relative to that of the best constant, where measured.
    """
    found = (
        *_rate(module, given),
        *_length(given, data, progress),
        *_start(module, errors),
        *_score_remarks(given, data),
        *_course(given, data, progress),
    )
    return tuple(Remark(message, source="finetune", concern="result") for message in found)


def _rate(module: nn.Module, given: Options) -> Iterator[str]:
    optimizer = given.optimization.optimizer
    if given.learning_rate is not None and isinstance(optimizer, str):
        high = learning_rates.high(optimizer.lower(), given.learning_rate, module)
        if high is not None:
            yield high


def _length(given: Options, data: TrainingData, progress: Progress) -> Iterator[str]:
    target = given.scoring.target
    if target is not None and progress.best_score is not None and progress.best_score >= target:
        return  # it ended because it was good enough
    steps = run_length.steps_an_epoch(data.source, given.executed.accumulate)
    samples = data.samples
    unattended = None
    if steps is not None and samples is not None:
        unattended = steps * run_length.default_epochs(steps, samples)
    message = run_length.few(progress.step, unattended if given.has_length else None)
    if message is not None:
        yield message


def _start(module: nn.Module, errors: Mapping[int, float]) -> Iterator[str]:
    names = getattr(module, "output_names", ())
    far = [names[index] if index < len(names) else str(index) for index, error in errors.items() if error >= 1]
    if far:
        yield (
            f"the model is given further from its teacher than a constant would be at {', '.join(far)}: "
            "use more bits, or leave its most sensitive layers in float (onnxqat profile ranks them)"
        )


def _score_remarks(given: Options, data: TrainingData) -> Iterator[str]:
    if data.held_out or not (given.by_loss or data.scored):
        return
    if data.scored:
        what = "the loss" if given.by_loss else "measured"
        yield f"the score is {what} on samples that were trained on, as the data cannot be divided"
    else:
        yield "nothing was scored, as the data can be read only once: whether training helped is not known"


def _course(given: Options, data: TrainingData, progress: Progress) -> Iterator[str]:
    """Yield a remark for each way in which the run went wrong: collapsed, diverged, no better than its start."""
    is_loss = given.by_loss
    start, last, best = progress.start_score, progress.score, progress.best_score
    if progress.collapses:
        yield (
            "training collapsed: outputs became constants that do not depend on the input, and were not kept; "
            "lower the learning rate"
        )
    first, final = (progress.losses[0], progress.losses[-1]) if progress.losses else (0.0, 0.0)
    if is_loss and data.scored and start is not None and last is not None:
        first, final = -start, -last
    if not final <= GROWN * first:
        yield f"training diverged: the loss grew from {first:.4g} to {final:.4g}; lower the learning rate"
    if start is not None and not progress.best_epoch and progress.step:
        what = "score"
        if is_loss:
            what = "loss on held-out samples" if data.held_out else "loss"
        value = -start if is_loss else start
        other = "" if last is None or last == best else f" (it ended at {-last if is_loss else last:.4g})"
        by_chance = " by more than chance" if is_loss and last is not None and last > start else ""
        yield (
            f"training did not help: no epoch had a better {what} than the {value:.4g} of the start{by_chance}{other}; "
            "the values of the start were kept"
        )
