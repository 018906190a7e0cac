"""A verdict: one question about a quantized model, its answer as a colour, the reason and the remedy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal, get_args

Question = Literal["parity", "accuracy", "deployment"]
Status = Literal["green", "amber", "red"]

MIN_SQNR, AMBER_SQNR = 10.0, 20.0
"""Signal to noise in dB: below the first a tenth of an output's power is noise, which is red; below the second is amber. A
ResNet-20 at W8A8 has 28, a MobileNetV2, which is fit for use, between the two."""

SEVERITY: dict[Status, int] = {status: rank for rank, status in enumerate(get_args(Status))}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The answer to one question.

    Attributes:
        name: ``parity``: torch and the runtime compute the same; ``accuracy``: the quantized model does the work of the
            float model; ``deployment``: a compiler has taken the file, and computes what the file says.
        status: green holds; amber holds within limits that deserve a look, or was not judged to the end; red fails.
        reason: one line with the figures that decided.
        remedy: a command or an action that changes the answer; empty where none is needed.
    """

    name: Question
    status: Status
    reason: str
    remedy: str = ""


def graded(*, red: bool, amber: bool) -> Status:
    """The status of a figure past its limit of red, of amber alone, or of neither."""
    if red:
        return "red"
    return "amber" if amber else "green"


def worst(verdicts: Iterable[Verdict]) -> Status:
    """The most severe status; green of none."""
    return max((verdict.status for verdict in verdicts), key=SEVERITY.__getitem__, default="green")


def passed(verdicts: Iterable[Verdict]) -> bool:
    """Check whether no verdict is red."""
    return worst(verdicts) != "red"
