"""Learning-rate schedules: one file per schedule, named like it, with a class ``Schedule``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from onnxqat import discover
from onnxqat.errors import UsageError
from onnxqat.training.optim.schedule import Schedule, WarmedUp

Factor: TypeAlias = Callable[[int, int], float]
"""A schedule of your own: (step counted from 0, steps of the run) -> factor on the learning rates."""


@dataclasses.dataclass(frozen=True)
class Own:
    """A function of step and length of the run as a schedule; warm-up is its own affair."""

    total_steps: int
    function: Factor

    def factor(self, step: int) -> float:
        """See :class:`onnxqat.training.optim.schedule.Schedule`."""
        return float(self.function(step, self.total_steps))


def names() -> list[str]:
    """The schedules that exist."""
    return discover.names(__name__)


def make(
    schedule: str | Factor,
    *,
    total_steps: int,
    warmup_steps: int = 0,
    steps_per_epoch: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Schedule:
    """The schedule of a run.

    Args:
        schedule: a name of :func:`names`, or a function of step and length of the run.
        total_steps: length of the run.
        warmup_steps: steps at first in which the learning rate rises linearly.
        steps_per_epoch: what options in epochs are multiplied by; None where the length of the data is not known.
        options: fields of the schedule's class beyond its lengths.

    Raises:
        UsageError: ``name-unknown``, ``option-invalid``.
    """
    if not isinstance(schedule, str):
        if options:
            raise UsageError(
                "option-invalid", f"a schedule of your own takes no options; there is {sorted(options)[0]!r}"
            )
        return Own(total_steps, schedule)
    kind = cast("type[WarmedUp]", discover.load(__name__, schedule).Schedule)
    known = {field.name for field in dataclasses.fields(kind) if field.init} - {
        field.name for field in dataclasses.fields(WarmedUp)
    }
    unknown = sorted(set(options or {}) - known)
    if unknown:
        raise UsageError(
            "option-invalid",
            f"schedule {schedule!r} has no option {unknown[0]!r}",
            hint=f"it has: {', '.join(sorted(known)) or 'none'}",
        )
    return kind(total_steps, warmup_steps, steps_per_epoch, **(options or {}))


def settings(schedule: Schedule) -> dict[str, Any]:
    """Return the name and numbers of `schedule` in which a resumed run has to agree, as JSON values."""
    if isinstance(schedule, Own):
        return {"schedule": "own", "total_steps": schedule.total_steps}
    kind = type(schedule).__module__.rpartition(".")[2]
    numbers = {f.name: getattr(schedule, f.name) for f in dataclasses.fields(cast(Any, schedule)) if f.init}
    return {"schedule": kind} | {k: list(v) if isinstance(v, tuple) else v for k, v in numbers.items()}
