"""The choice of how weights are rounded, and whether biases are corrected."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

from onnxqat.backends import method_places
from onnxqat.backends.schema import Backend
from onnxqat.errors import UsageError

Rounding = Literal["auto", "nearest", "gptq", "compensated"]
"""``gptq`` and ``compensated`` mean the same: the first is the name of the paper."""


@dataclasses.dataclass(frozen=True)
class WeightChoice:
    """The way weights are rounded, as the user says.

    Attributes:
        rounding: ``gptq`` rounds on the data (:func:`onnxqat.calibration.rounding.compensate`), ``nearest`` does
            nothing; ``auto`` rounds on most of the data where the outputs come closer to the float model's on the rest.
            It leaves alone weights that have to be odd and, without a file of the float model, weights below 7 bits and
            a BatchNormalization that is kept.
        bias_correction: whether biases take up the mean error of their channels; None: where weights are rounded on data.
    """

    rounding: Rounding = "auto"
    bias_correction: bool | None = None

    @property
    def needs_data(self) -> bool:
        """Check whether the user asked for something that needs data."""
        return self.rounding in ("gptq", "compensated") or bool(self.bias_correction)

    def without_data(self) -> WeightChoice:
        """The same with rounding to nearest in place of ``auto``, which takes data and time."""
        return dataclasses.replace(self, rounding="nearest") if self.rounding == "auto" else self


def chosen(rounding: Rounding, bias_correction: bool | None, table: Backend) -> WeightChoice:
    """Check the names, and that `table` leaves codes and biases to be chosen.

    Raises:
        UsageError: ``option-invalid``.
    """
    if rounding not in get_args(Rounding):
        hint = method_places.hint(rounding, "--rounding", get_args(Rounding))
        raise UsageError("option-invalid", f"rounding is {rounding!r}", hint=hint)
    choice = WeightChoice(rounding, bias_correction)
    if choice.needs_data and table.sums == "tie_free":
        what = "bias correction" if rounding in ("auto", "nearest") else f"rounding={rounding!r}"
        text = f"{table.backend} --exact rounds weights to even codes, which undoes {what}"
        raise UsageError("option-invalid", text, hint="leave one of the two")
    return choice
