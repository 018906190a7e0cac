"""Arguments of ``insert_qdq`` that a search varies."""

from __future__ import annotations

import dataclasses
from typing import Literal

from onnxqat.placement.table_overrides import Overrides


@dataclasses.dataclass(frozen=True)
class Variant:
    """Arguments of :func:`onnxqat.insert_qdq`.

    Attributes:
        name: for the report.
        overrides: of the table.
        rounding: of weights.
        equalize: names of equalizations; True: those of the table.
    """

    name: str
    overrides: Overrides
    rounding: Literal["auto", "compensated"] = "auto"
    equalize: bool | tuple[str, ...] = True
