"""Ways to calibrate, in the order in which they are tried."""

from __future__ import annotations

import dataclasses
from typing import Literal

from onnxqat.placement.table_overrides import Overrides

OBSERVERS = ("mse", "percentile")
"""Besides that of the table."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """Arguments of :func:`onnxqat.insert_qdq`.

    Attributes:
        name: for the report.
        overrides: of the table.
        rounding: of weights.
    """

    name: str
    overrides: Overrides
    rounding: Literal["auto", "compensated"] = "auto"


def first_variants(overrides: Overrides) -> tuple[Variant, ...]:
    """The table as it is, then with other observers, unless the user has chosen one."""
    plain = Variant("calibrated", overrides)
    if overrides.observer is not None:
        return (plain,)
    others = (Variant(f"observer {name}", dataclasses.replace(overrides, observer=name)) for name in OBSERVERS)
    return (plain, *others)


def compensated(best: Variant) -> Variant | None:
    """`best` with weights rounded on the data; None where that is not possible."""
    if best.overrides.exact or best.rounding == "compensated":
        return None
    return dataclasses.replace(best, name=f"{best.name}, compensated rounding", rounding="compensated")
