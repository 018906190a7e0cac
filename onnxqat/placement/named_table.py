"""The table that a backend's own table names for another way to quantize: activations at run time, or weights alone."""

from __future__ import annotations

from typing import Literal

from onnxqat.backends import schema
from onnxqat.backends.schema import Backend
from onnxqat.errors import UsageError


def load(backend: Backend, key: Literal["dynamic", "weight_only"], purpose: str, hint: str) -> Backend:
    """Return the table that `backend` names under `key`.

    Args:
        backend: the table that is asked.
        key: its key.
        purpose: the use of the table, as the error says it.
        hint: what to do where no table serves.

    Raises:
        UsageError: ``option-invalid``; the backend names none.
    """
    name = getattr(backend, key)
    if name is None:
        others = ", ".join(other for other in schema.names() if getattr(schema.load(other), key))
        raise UsageError("option-invalid", f"{backend.backend} has no table {purpose}", hint=f"{others} have; {hint}")
    return schema.load(name)
