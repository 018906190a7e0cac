"""Length of a run: batch size, epochs and steps."""

from __future__ import annotations

from onnxqat.errors import UsageError
from onnxqat.training.data.batches import Batches

STEPS = 400
"""Steps of a run whose length is not given: a calibrated network gains most of what it can gain by then."""

MOST_EPOCHS = 20
"""Passes over the data in such a run: more of them overfit a hundred samples."""

MOST_SAMPLES = 5000
"""Samples that such a run computes, repeated ones counted each time, unless one pass has more: minutes on a CPU."""

FEW_SAMPLES = 1000
"""With fewer samples than this, batches of :data:`SMALL_BATCH` give a run enough steps."""

BATCH, SMALL_BATCH = 32, 8

FEW_STEPS = 50
"""Steps below which a run is remarked on: with the warm-up and the fall of the learning rate, it hardly moves."""


def steps_an_epoch(source: Batches, accumulate: int = 1) -> int | None:
    """Steps of one pass over `source` where `accumulate` batches make a step; None when that is not known before."""
    return None if source.steps is None else -(-source.steps // accumulate)


def batch_size(samples: int | None, *, given: int | None, has_length: bool) -> int:
    """Samples in a batch, where the model does not prescribe it.

    Args:
        samples: of the data; None where their number is not known.
        given: by the user.
        has_length: whether the user gives epochs or steps.
    """
    if given is not None:
        return given
    return SMALL_BATCH if not has_length and samples is not None and samples < FEW_SAMPLES else BATCH


def default_epochs(steps: int, samples: int) -> int:
    """Passes over the data of a run whose length is not given: at least one.

    Args:
        steps: of one pass.
        samples: in one pass.
    """
    return max(1, min(-(-STEPS // max(1, steps)), MOST_EPOCHS, MOST_SAMPLES // max(1, samples)))


def total_steps(
    source: Batches, epochs: int | None, max_steps: int | None, accumulate: int = 1, *, samples: int | None = None
) -> int:
    """Steps of `epochs` passes over `source`, at most `max_steps`.

    Args:
        source: the data.
        epochs: None where `max_steps` is not given either: :func:`default_epochs`.
        max_steps: None: no limit.
        accumulate: batches that make a step.
        samples: in one pass; None, where they cannot be read again or are not counted: one pass.

    Raises:
        UsageError: ``option-invalid`` for a number below 1, or where the length of the data is needed and not known.
    """
    for name, value in (("epochs", epochs), ("max_steps", max_steps)):
        if value is not None and value < 1:
            raise UsageError("option-invalid", f"{name} is {value}; it must be at least 1")
    if epochs is None and max_steps is not None:
        return max_steps
    steps = steps_an_epoch(source, accumulate)
    if steps is None:
        if max_steps is not None:
            return max_steps
        raise UsageError(
            "option-invalid", "the length of the data is not known", hint="say how many steps to take: max_steps"
        )
    if epochs is None:
        epochs = 1 if samples is None else default_epochs(steps, samples)
    whole = steps * epochs
    return whole if max_steps is None else min(whole, max_steps)


def few(steps: int, unattended: int | None) -> str | None:
    """Say that a run is too short to move a network; None where it is not.

    Args:
        steps: of the run.
        unattended: of a run of default length on the same data; None where that is not known.
    """
    if steps >= FEW_STEPS:
        return None
    best = f"; without a number of epochs or steps it takes {unattended}" if (unattended or 0) > steps else ""
    more = best or "; give more data, or smaller batches"
    return f"too few steps to change a network: {steps}{more}"
