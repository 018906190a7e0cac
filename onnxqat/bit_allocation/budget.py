"""Budgets: what a choice of widths may cost, or how much it may lose."""

from __future__ import annotations

import dataclasses
import re

from onnxqat.bit_allocation.costs import Cost
from onnxqat.errors import UsageError

_UNITS = {"": 1.0, "B": 1.0, "k": 1e3, "kB": 1e3, "M": 1e6, "MB": 1e6, "G": 1e9, "GB": 1e9, "T": 1e12}


@dataclasses.dataclass(frozen=True)
class Budget:
    """One limit of four.

    Attributes:
        weight_bytes: bytes of the weights of all layers that are chosen for: a number, ``1.2MB``, or ``50%`` of what
            they have at 8 bits.
        multiply_bits: multiplications of a sample times both widths: a number, ``3G``, or ``60%`` of 8 and 8 bits.
        min_sqnr: lowest signal to noise in dB of the worst output, as measured; the cheapest choice is searched.
        max_drop: largest loss of the score, in its unit (points of ``top1``), as measured; the same.
        minimize: the cost of the last two.
    """

    weight_bytes: str | float | None = None
    multiply_bits: str | float | None = None
    min_sqnr: float | None = None
    max_drop: float | None = None
    minimize: Cost = "weight-bytes"

    def __post_init__(self) -> None:
        given = [f.name for f in dataclasses.fields(self) if f.name != "minimize" and getattr(self, f.name) is not None]
        if len(given) != 1:
            text = f"there are {len(given)} budgets: {', '.join(given)}" if given else "there is no budget"
            hint = "give one of --weight-bytes, --multiply-bits, --min-sqnr and --max-drop"
            raise UsageError("option-invalid", text, hint=hint)
        if self.minimize not in ("weight-bytes", "multiply-bits"):
            raise UsageError("option-invalid", f"minimize is {self.minimize!r}", hint="weight-bytes, multiply-bits")

    @property
    def cost(self) -> Cost:
        """The cost that is limited, or kept low."""
        if self.weight_bytes is not None:
            return "weight-bytes"
        return "multiply-bits" if self.multiply_bits is not None else self.minimize

    def amount(self, whole: float) -> float | None:
        """Limit of :attr:`cost` in its unit; None where the loss is limited.

        Args:
            whole: the cost at 8 bits, in the same unit.
        """
        given = self.multiply_bits if self.weight_bytes is None else self.weight_bytes
        if given is None:
            return None
        return float(given) if isinstance(given, (int, float)) else _parsed(given, self.cost, whole)


def _parsed(text: str, cost: Cost, whole: float) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%|[kMG]?B?|T)", text.strip())
    if found is None or not float(found[1]):
        raise UsageError(
            "option-invalid", f"--{cost} {text!r} is no amount", hint="for example 50%, 800kB or 1.2MB; a plain number"
        )
    number = float(found[1])
    return number / 100 * whole if found[2] == "%" else number * _UNITS[found[2]]
