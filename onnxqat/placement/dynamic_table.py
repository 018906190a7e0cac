"""The table of a backend whose products quantize their data when the model runs."""

from __future__ import annotations

from typing import Literal, get_args

from onnxqat.backends.schema import Backend
from onnxqat.errors import UsageError
from onnxqat.placement import named_table

Activations = Literal["static", "dynamic"]
"""Scales of activations from calibration data, or from each tensor when the model runs."""


def of_backend(backend: Backend, activations: str | None) -> Backend:
    """The table for `activations` that belongs to `backend`, which may be one itself; as it is for None and ``static``.

    Raises:
        UsageError: ``option-invalid``.
    """
    if activations is not None and activations not in get_args(Activations):
        known = ", ".join(get_args(Activations))
        raise UsageError("option-invalid", f"there are no {activations!r} activations", hint=f"one of: {known}")
    if activations != "dynamic" or backend.dynamic_activations:
        return backend
    purpose = "for activations that are quantized when the model runs"
    return named_table.load(backend, "dynamic", purpose, "integer hardware needs scales that are constant")
