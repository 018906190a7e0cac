"""Check of the promises that every metric makes, on outputs and labels of small tasks."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from onnxqat import extension
from onnxqat.errors import QatError
from onnxqat.metrics._base import Array, BaseMetric, Batch
from onnxqat.metrics._score import KIND
from onnxqat.promises import BrokenError, ExtensionCheck, Finding, of_each, try_each

SAMPLES = 24
CLOSE = 1e-6
"""Relative difference of two scores that counts as none: sums of one stream in two orders."""


_Trial: TypeAlias = "Callable[[type[BaseMetric], Task], None]"


@dataclasses.dataclass(frozen=True)
class Task:
    """Inputs and answers of one kind of model, and two models: a good one, and one that guesses.

    Attributes:
        name: what the model does.
        labels: right answers, as the data have them.
        good: outputs close to the labels.
        bad: outputs of the same shape that have nothing to do with them.
        compared: whether the metric gets the good outputs as those of the float model, in place of the labels.
    """

    name: str
    labels: Array
    good: Array
    bad: Array
    compared: bool = False


def check(name: str) -> ExtensionCheck:
    """Try a metric: its name, or the path of its file.

    Classes of samples, tokens and pixels, numbers and boxes are scored, whichever the metric reads; one that compares
    with the float model gets good outputs for those of the float model.

    1. ``reads``: it reads one of the tasks.
    2. ``number``: the score of a good model is a number, and none without a sample.
    3. ``better``: a good model scores higher than one that guesses, and :meth:`BaseMetric.drop` is positive between them.
    4. ``batches``: the samples in other batches, and in another order, score the same.
    5. ``non-finite``: NaN in the outputs of a quarter of the samples makes a worse score, or none.
    6. ``input``: outputs, labels and inputs stay as they are.
    7. ``second run``: another object gives the same score, whatever the first has seen.

    Raises:
        UsageError: there is no such metric.
    """
    metric: type[BaseMetric] = extension.load(KIND, name).Metric
    tasks, reason = _readable(metric)
    if not tasks:
        refused = Finding("reads", False, f"it reads none of the tasks; {reason}")
        return ExtensionCheck(extension.key_of(name), (refused,))
    named = {f"{task.name}{', against the float model' if task.compared else ''}": task for task in tasks}
    trials = {promise: of_each(functools.partial(trial, metric), named) for promise, trial in _TRIALS.items()}
    tried = f"tried on {', '.join(dict.fromkeys(task.name for task in tasks))}"
    return ExtensionCheck(extension.key_of(name), (Finding("reads", True), *try_each(trials)), tried)


def _tasks() -> Iterator[Task]:
    """Yield one task of each form that labels and outputs have."""
    random = np.random.default_rng(0)

    def noise(*shape: int) -> Array:
        return random.standard_normal((SAMPLES, *shape)).astype(np.float32)

    def scores(labels: Array, classes: int, axis: int) -> Array:
        right = np.eye(classes, dtype=np.float32)[labels] * 6
        return np.moveaxis(right + noise(*right.shape[1:]), -1, axis)

    classes = random.integers(0, 7, SAMPLES)  # top5 asks for more than 5 classes
    yield Task("classes of samples", classes, scores(classes, 7, 1), noise(7))
    tokens = random.integers(0, 5, (SAMPLES, 6))
    yield Task("classes of tokens", tokens, scores(tokens, 5, -1), noise(6, 5))
    pixels = random.integers(0, 4, (SAMPLES, 6, 6))
    yield Task("classes of pixels", pixels, scores(pixels, 4, 1), noise(4, 6, 6))
    numbers = noise()
    yield Task("numbers", numbers, numbers[:, None] + noise(1) / 20, noise(1))
    corners = random.integers(0, 24, (SAMPLES, 2, 2)) + np.array([[0, 0], [32, 32]])
    kinds = random.integers(0, 3, (SAMPLES, 2, 1))
    # COCO ranks boxes by score: two of the same would be ranked by the order of the samples.
    score = np.linspace(0.5, 0.9, SAMPLES * 2).reshape(SAMPLES, 2, 1)
    boxes = np.concatenate([kinds, corners, corners + 8], axis=2).astype(np.float32)
    found = np.concatenate([corners, corners + 8, score, kinds], axis=2).astype(np.float32)
    elsewhere = found + np.array([16, 16, 16, 16, 0, 0], np.float32)
    yield Task("boxes", boxes, found, elsewhere)


def _readable(metric: type[BaseMetric]) -> tuple[list[Task], str]:
    """Return the tasks that the metric reads, and the first reason for which it does not read one."""
    ways = [compared for compared in (False, True) if metric.needs != ("labels" if compared else "float")]
    tasks = [dataclasses.replace(task, compared=compared) for task in _tasks() for compared in ways]
    reasons = [_reason(metric, task) for task in tasks]
    return [task for task, reason in zip(tasks, reasons, strict=True) if not reason], next(filter(None, reasons), "")


def _reason(metric: type[BaseMetric], task: Task) -> str:
    """Return the reason for which the metric does not read a task; empty where it does."""
    try:
        score = _score(metric, task, task.good)
    except QatError as error:
        return f"{task.name}: {error.message}"
    return f"{task.name}: the score is not a number" if math.isnan(score) else ""


def _score(
    metric: type[BaseMetric], task: Task, outputs: Array, order: Sequence[Array] = (np.arange(SAMPLES),)
) -> float:
    """Score `outputs` with a new object; `order` has the samples of each batch."""
    running = metric()
    for batch in order:
        running.update(_batch(task, outputs, batch))
    return float(running.result())


def _batch(task: Task, outputs: Array, chosen: Array) -> Batch:
    feeds = {"x": np.zeros((len(chosen), 3, 64, 64), np.float32)}
    named = {"y": outputs[chosen]}
    if task.compared:
        return Batch(feeds, named, None, {"y": task.good[chosen]})
    return Batch(feeds, named, task.labels[chosen], None)


def _number(metric: type[BaseMetric], task: Task) -> None:
    if _score(metric, task, task.good) == -math.inf:
        raise BrokenError("the score of a good model is minus infinity")
    empty = _score(metric, task, task.good, order=())
    if not math.isnan(empty):
        raise BrokenError(f"without a sample the score is {empty:.6g}, and not NaN")


def _better(metric: type[BaseMetric], task: Task) -> None:
    good, bad = _score(metric, task, task.good), _score(metric, task, task.bad)
    if not good > bad:
        raise BrokenError(f"a good model scores {good:.6g}, one that guesses {bad:.6g}")
    lost = metric.drop(good, bad)
    if not lost > 0:
        raise BrokenError(f"drop from {good:.6g} to {bad:.6g} is {lost:.6g}")


def _batches(metric: type[BaseMetric], task: Task) -> None:
    middle = task.good.copy()
    middle[::3] = task.bad[::3]
    wanted = _score(metric, task, middle)
    mixed = np.random.default_rng(1).permutation(SAMPLES)
    orders: Mapping[str, list[Array]] = {
        "batches of 5": np.split(np.arange(SAMPLES), range(5, SAMPLES, 5)),
        "single samples": np.split(np.arange(SAMPLES), SAMPLES),
        "another order": [mixed],
    }
    for name, order in orders.items():
        found = _score(metric, task, middle, order)
        if not _same(found, wanted):
            raise BrokenError(f"{name} score {found:.9g} instead of {wanted:.9g}")


def _non_finite(metric: type[BaseMetric], task: Task) -> None:
    broken = task.good.copy()
    broken[: SAMPLES // 4] = np.nan
    good, found = _score(metric, task, task.good), _score(metric, task, broken)
    if found >= good:
        raise BrokenError(f"a good model scores {good:.6g}, and {found:.6g} with NaN in a quarter of its outputs")


def _input(metric: type[BaseMetric], task: Task) -> None:
    batch = _batch(task, task.good, np.arange(SAMPLES))
    reference = {f"{name} of the float model": array for name, array in (batch.reference or {}).items()}
    arrays = {**batch.feeds, **batch.outputs, **reference}
    if batch.labels is not None:
        arrays["labels"] = batch.labels
    copies = {name: array.copy() for name, array in arrays.items()}
    running = metric()
    running.update(batch)
    running.result()
    changed = [name for name, array in arrays.items() if not np.array_equal(array, copies[name])]
    if changed:
        raise BrokenError(f"it changes {changed[0]!r} in place")


def _second_run(metric: type[BaseMetric], task: Task) -> None:
    first = _score(metric, task, task.good)
    _score(metric, task, task.bad)
    again = _score(metric, task, task.good)
    if not _same(first, again):
        raise BrokenError(f"{again:.9g} instead of {first:.9g}")


def _same(one: float, other: float) -> bool:
    return one == other or abs(one - other) <= CLOSE * max(abs(one), abs(other))


_TRIALS: Mapping[str, _Trial] = {
    "number": _number,
    "better": _better,
    "batches": _batches,
    "non-finite": _non_finite,
    "input": _input,
    "second run": _second_run,
}
