"""How many steps a run takes."""

from __future__ import annotations

from onnxqat.errors import UsageError
from onnxqat.training.batches import Batches


def steps_an_epoch(source: Batches, accumulate: int = 1) -> int | None:
    """Steps of one pass over `source` where `accumulate` batches make a step; None when that is not known before."""
    return None if source.steps is None else -(-source.steps // accumulate)


def total_steps(source: Batches, epochs: int | None, max_steps: int | None, accumulate: int = 1) -> int:
    """Steps of `epochs` passes over `source` (1 where `max_steps` is not given either), at most `max_steps`.

    Raises:
        UsageError: ``option-invalid`` for a number below 1, or where the length of the data is needed and not known.
    """
    for name, value in (("epochs", epochs), ("max_steps", max_steps)):
        if value is not None and value < 1:
            raise UsageError("option-invalid", f"{name} is {value}; it must be at least 1")
    total = max_steps
    if epochs is not None or max_steps is None:
        steps = steps_an_epoch(source, accumulate)
        if steps is not None:
            whole = steps * (epochs or 1)
            total = whole if max_steps is None else min(whole, max_steps)
        elif max_steps is None:
            raise UsageError(
                "option-invalid", "the length of the data is not known", hint="say how many steps to take: max_steps"
            )
    assert total is not None
    return total
