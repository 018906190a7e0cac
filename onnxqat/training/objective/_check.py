"""Check of the promises that every loss makes, on outputs, labels and teachers of small tasks."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from onnxqat import extension
from onnxqat.errors import QatError
from onnxqat.promises import BrokenError, ExtensionCheck, Finding, of_each, try_each
from onnxqat.training.objective import _found
from onnxqat.training.objective.losses import Objective

SAMPLES = 12
SMALL_STEP = 1e-3
"""Length of a step along the gradient, relative to the outputs: so short that the loss is nearly straight on it."""

CLOSE = 1e-5
"""Relative difference of two losses that counts as none: float32 sums in two orders."""

_Trial: TypeAlias = "Callable[[Objective, Task], None]"


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """Labels, a teacher and outputs that are good or guesses.

    Attributes:
        name: what the model does.
        labels: right answers; None without.
        teacher: outputs of the teacher; None without.
        good: outputs close to the answers.
        bad: outputs of the same shape that have nothing to do with them.
    """

    name: str
    labels: Tensor | None
    teacher: tuple[Tensor, ...] | None
    good: Tensor
    bad: Tensor


def check(name: str) -> ExtensionCheck:
    """Try a loss: the path of its file, or its name.

    Classes of samples, tokens and pixels, and numbers are learned from labels, from a teacher and from both, whichever
    the loss takes.

    1. ``learns``: on one of the tasks at least, outputs close to the answers have a smaller loss than guesses; a finite
       scalar both. The other promises are tried on the tasks of which this is so.
    2. ``gradient``: the outputs get a gradient, which is finite and not zero, and a short step against it makes the loss
       smaller.
    3. ``order``: samples in another order have the same loss.
    4. ``input``: outputs, labels and the teacher's outputs stay as they are.
    5. ``second run``: a second call gives the same loss.

    Raises:
        UsageError: there is no such loss.
    """
    loss = _found.made(name)
    assert loss is not None
    tasks, reason = _readable(loss)
    if not tasks:
        refused = Finding("learns", False, f"it fits none of the tasks; {reason}")
        return ExtensionCheck(extension.key_of(name), (refused,))
    named = {task.name: task for task in tasks}
    trials = {promise: of_each(functools.partial(trial, loss), named) for promise, trial in _TRIALS.items()}
    tried = f"tried on {'; '.join(task.name for task in tasks)}"
    return ExtensionCheck(extension.key_of(name), (Finding("learns", True), *try_each(trials)), tried)


def _tasks() -> Iterator[Task]:
    """Yield one task of each form of labels and outputs, from labels, from a teacher and from both."""
    random = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(SAMPLES, *shape, generator=random)

    def classes(count: int, *shape: int) -> Tensor:
        return torch.randint(0, count, (SAMPLES, *shape), generator=random)

    def scores(labels: Tensor, count: int, axis: int) -> Tensor:
        right = torch.nn.functional.one_hot(labels, count) * 6.0
        return (right + noise(*right.shape[1:])).movedim(-1, axis)

    of_samples, of_tokens, of_pixels, numbers = classes(7), classes(5, 6), classes(4, 6, 6), noise(1)
    forms = (
        ("classes of samples", of_samples, scores(of_samples, 7, 1), scores(of_samples, 7, 1), noise(7)),
        ("classes of tokens", of_tokens, scores(of_tokens, 5, -1), scores(of_tokens, 5, -1), noise(6, 5)),
        ("classes of pixels", of_pixels, scores(of_pixels, 4, 1), scores(of_pixels, 4, 1), noise(4, 6, 6)),
        ("numbers", numbers, numbers, numbers + noise(1) / 20, noise(1)),
    )
    for name, labels, teacher, good, bad in forms:
        yield Task(f"{name}, labels", labels, None, good, bad)
        yield Task(f"{name}, a teacher", None, (teacher,), good, bad)
        yield Task(f"{name}, both", labels, (teacher,), good, bad)


def _readable(loss: Objective) -> tuple[list[Task], str]:
    """Return the tasks that the loss fits, and the first reason for which it does not fit one."""
    tasks = [*_tasks()]
    reasons = {task: _reason(loss, task) for task in tasks}
    # A loss that is computed and is the wrong way round says more than one that does not take the task.
    worst = sorted(filter(None, reasons.values()), key=lambda reason: reason.refused)
    return [task for task, reason in reasons.items() if reason is None], worst[0].text if worst else ""


@dataclasses.dataclass(frozen=True)
class _Reason:
    """Reason for which a loss does not fit a task.

    Attributes:
        text: in words.
        refused: whether the loss raised.
    """

    text: str
    refused: bool


def _reason(loss: Objective, task: Task) -> _Reason | None:
    try:
        good, bad = (float(_value(loss, task, outputs)) for outputs in (task.good, task.bad))
    except QatError as error:
        return _Reason(f"{task.name}: {error.message}", refused=True)
    if -math.inf < good < bad < math.inf:
        return None
    text = f"{task.name}: outputs close to the answers have a loss of {good:.6g}, guesses of {bad:.6g}"
    return _Reason(text, refused=False)


def _value(loss: Objective, task: Task, outputs: Tensor, order: Sequence[int] | None = None) -> Tensor:
    chosen = slice(None) if order is None else list(order)
    labels = None if task.labels is None else task.labels[chosen]
    teacher = None if task.teacher is None else tuple(each[chosen] for each in task.teacher)
    return loss((outputs[chosen],), labels, teacher)


def _gradient(loss: Objective, task: Task) -> None:
    outputs = task.bad.clone().requires_grad_()
    before = _value(loss, task, outputs)
    if before.grad_fn is None:
        raise BrokenError("the loss does not depend on the outputs, as far as torch knows")
    (gradient,) = torch.autograd.grad(before, outputs)
    if not bool(torch.isfinite(gradient).all()):
        raise BrokenError("the gradient of the outputs is not finite")
    norm = gradient.norm()
    if not norm > 0:
        raise BrokenError("the gradient of the outputs is zero")
    step = task.bad.norm() * SMALL_STEP / norm
    after = _value(loss, task, task.bad - step * gradient)
    if not after < before:
        raise BrokenError(f"a short step against the gradient leads from {float(before):.6g} to {float(after):.6g}")


def _order(loss: Objective, task: Task) -> None:
    mixed = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(1)).tolist()
    wanted, found = float(_value(loss, task, task.bad)), float(_value(loss, task, task.bad, mixed))
    if abs(found - wanted) > CLOSE * max(abs(found), abs(wanted)):
        raise BrokenError(f"samples in another order have a loss of {found:.7g} instead of {wanted:.7g}")


def _input(loss: Objective, task: Task) -> None:
    given = {"outputs": task.bad, "labels": task.labels, "the teacher's outputs": (task.teacher or (None,))[0]}
    tensors = {name: each.clone() for name, each in given.items() if each is not None}
    copies = {name: each.clone() for name, each in tensors.items()}
    teacher = tensors.get("the teacher's outputs")
    loss((tensors["outputs"],), tensors.get("labels"), None if teacher is None else (teacher,))
    changed = [name for name, each in tensors.items() if not torch.equal(each, copies[name])]
    if changed:
        raise BrokenError(f"it changes {changed[0]} in place")


def _second_run(loss: Objective, task: Task) -> None:
    first = float(_value(loss, task, task.bad))
    _value(loss, task, task.good)
    again = float(_value(loss, task, task.bad))
    if again != first:
        raise BrokenError(f"{again:.9g} instead of {first:.9g}")


_TRIALS: Mapping[str, _Trial] = {
    "gradient": _gradient,
    "order": _order,
    "input": _input,
    "second run": _second_run,
}
