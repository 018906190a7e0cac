"""Check that there is calibration data if quantizers need it: those of activations do, those of weights do not."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from onnxqat.backends.schema import Backend
from onnxqat.errors import DataError, UsageError
from onnxqat.placement import given_encodings, planner
from onnxqat.placement.given_encodings import Given
from onnxqat.placement.table_overrides import NodeSelection
from onnxqat.types import Remark


def check(
    model: ir.Model,
    table: Backend,
    chosen: NodeSelection,
    encodings: Given,
    *,
    data: Any,
    random_data: bool,
    rounds: bool,
) -> tuple[Remark, ...]:
    """Raise an error if data are missing, if there are two kinds, or if encodings do not fit.

    Args:
        model: prepared float model.
        table: backend table, user overrides applied.
        chosen: nodes that the user took out.
        encodings: of tensors that need no data.
        data: what was given; None without.
        random_data: whether random numbers stand in.
        rounds: weights or biases are to be chosen on data.

    Returns:
        A remark where nothing was given and nothing is needed.

    Raises:
        DataError: ``data-missing``.
        UsageError: ``option-invalid``; what :func:`onnxqat.placement.given_encodings.check` raises.
    """
    from onnxqat.calibration import resolve

    plan = planner.plan(model, table, chosen)
    remarks = given_encodings.check(encodings, plan, model)
    if data is not None and random_data:
        raise UsageError("option-invalid", "there are both calibration data and --random-data", hint="give one of them")
    if data is not None or random_data:
        return remarks
    hint = "give --calibration, or --random-data to try the placement without meaningful ranges"
    if rounds:
        raise DataError("data-missing", "there are no data to round weights or to correct biases on", hint=hint)
    observed = set(resolve.tensors_to_observe(plan)) - set(encodings)
    if observed:
        text = f"there is no calibration data, and ranges of {len(observed)} activations are needed"
        raise DataError("data-missing", text, hint=hint)
    return (*remarks, Remark("no activation is to be calibrated, so that no data are needed", source="calibrate"))
