"""Ways to calibrate, in the order in which they are tried."""

from __future__ import annotations

import dataclasses
from typing import Literal

import onnx_ir as ir

from onnxqat.passes import _base
from onnxqat.passes._linked_layers import Link, find
from onnxqat.passes.fold_batchnorm import FoldBatchnorm
from onnxqat.placement.table_overrides import Overrides

EQUALIZED = ("auto", "cross-layer-equalization")

OBSERVERS = ("mse", "percentile")
"""Besides that of the table."""


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


def first_variants(overrides: Overrides) -> tuple[Variant, ...]:
    """The table as it is, then with other observers, unless the user has chosen one."""
    plain = Variant("calibrated", overrides)
    if overrides.observer is not None:
        return (plain,)
    others = (Variant(f"observer {name}", dataclasses.replace(overrides, observer=name)) for name in OBSERVERS)
    return (plain, *others)


def equalized(best: Variant, model: ir.Model) -> Variant | None:
    """`best` with cross-layer equalization wherever it can work, and not only where few samples show that it helps.

    Args:
        best: the best so far.
        model: float model.

    Returns:
        None where no two layers of it are linked, or it is done already.
    """
    if best.equalize is not True:
        return None
    prepared = model.clone()
    _base.rewrite(prepared, [FoldBatchnorm()])
    if not any(isinstance(link, Link) for link in find(prepared.graph)):
        return None
    return dataclasses.replace(best, name=f"{best.name}, cross-layer equalization", equalize=EQUALIZED)


def compensated(best: Variant) -> Variant | None:
    """`best` with weights rounded on the data; None where that is not possible."""
    if best.overrides.exact or best.rounding == "compensated":
        return None
    return dataclasses.replace(best, name=f"{best.name}, compensated rounding", rounding="compensated")
