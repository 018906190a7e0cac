"""Budgets: what a choice of widths may cost, or how much it may lose."""

from __future__ import annotations

import dataclasses
import re
from typing import get_args

from onnxqat.bit_allocation.costs import Cost
from onnxqat.errors import UsageError

_TIMES = {"": 1.0, "ms": 1.0, "us": 1e-3, "s": 1e3}
_UNITS = {"": 1.0, "B": 1.0, "k": 1e3, "kB": 1e3, "M": 1e6, "MB": 1e6, "G": 1e9, "GB": 1e9, "T": 1e12}


@dataclasses.dataclass(frozen=True)
class Budget:
    """One limit of six.

    Attributes:
        weight_bytes: bytes of the weights of all layers that are chosen for: a number, ``1.2MB``, or ``50%`` of what
            they have at 8 bits.
        multiply_bits: multiplications of a sample times both widths: a number, ``3G``, or ``60%`` of 8 and 8 bits.
        integer_share: smallest share of the multiplications that is on integers: ``90%``, or 0.9.
        latency: time of one sample in the backend's runtime on one thread, as its profiler measures the kernels: ``4ms``,
            or ``60%`` of the float model's.
        min_sqnr: lowest signal to noise in dB of the worst output, as measured; the cheapest choice is searched.
        max_drop: largest loss of the score, in its unit (points of ``top1``), as measured; the same.
        minimize: the cost of the last two.
    """

    weight_bytes: str | float | None = None
    multiply_bits: str | float | None = None
    min_sqnr: float | None = None
    max_drop: float | None = None
    minimize: Cost = "weight-bytes"
    integer_share: str | float | None = None
    latency: str | float | None = None

    def __post_init__(self) -> None:
        given = [f.name for f in dataclasses.fields(self) if f.name != "minimize" and getattr(self, f.name) is not None]
        if len(given) != 1:
            text = f"there are {len(given)} budgets: {', '.join(given)}" if given else "there is no budget"
            hint = "give one of --weight-bytes, --multiply-bits, --integer-share, --latency, --min-sqnr and --max-drop"
            raise UsageError("option-invalid", text, hint=hint)
        if self.minimize not in get_args(Cost):
            raise UsageError("option-invalid", f"minimize is {self.minimize!r}", hint=", ".join(get_args(Cost)))

    @property
    def cost(self) -> Cost:
        """The cost that is limited, or kept low."""
        limits: dict[Cost, str | float | None] = {
            "weight-bytes": self.weight_bytes,
            "multiply-bits": self.multiply_bits,
            "float-multiplications": self.integer_share,
            "latency": self.latency,
        }
        return next((cost for cost, limit in limits.items() if limit is not None), self.minimize)

    @property
    def is_of_loss(self) -> bool:
        """Check whether the loss is limited, and a cost kept low."""
        return self.min_sqnr is not None or self.max_drop is not None

    def amount(self, whole: float) -> float | None:
        """Limit of :attr:`cost` in its unit; None where the loss is limited.

        Args:
            whole: what percentages are of, in the same unit: the cost at 8 bits, the float model's time, all
                multiplications.
        """
        if self.is_of_loss:
            return None
        if self.integer_share is not None:
            return (1.0 - _share(self.integer_share)) * whole
        given = next(v for v in (self.weight_bytes, self.multiply_bits, self.latency) if v is not None)
        return float(given) if isinstance(given, (int, float)) else _parsed(given, self.cost, whole)


def _share(given: str | float) -> float:
    text = given.strip() if isinstance(given, str) else f"{given}"
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text)
    share = float(found[1]) / (100 if found[2] else 1) if found is not None else 2.0
    if not 0 < share <= 1:
        raise UsageError("option-invalid", f"--integer-share {text!r} is no share", hint="for example 90%")
    return share


def _parsed(text: str, cost: Cost, whole: float) -> float:
    units, example = (_TIMES, "60% or 4ms") if cost == "latency" else (_UNITS, "50%, 800kB or 1.2MB; a plain number")
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%|[a-zA-Z]*)", text.strip())
    if found is None or not float(found[1]) or found[2] not in {"%", *units}:
        raise UsageError("option-invalid", f"--{cost} {text!r} is no amount", hint=f"for example {example}")
    number = float(found[1])
    return number / 100 * whole if found[2] == "%" else number * units[found[2]]
