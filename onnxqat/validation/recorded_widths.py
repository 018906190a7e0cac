"""Widths that a file was quantized with where they are not its table's: options for the command that makes it again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from onnxqat.backends import schema
from onnxqat.errors import BackendError
from onnxqat.placement import table_overrides


def widths(metadata: Mapping[str, str], weights: Sequence[int]) -> tuple[str, int | None]:
    """Return the values of ``--bits`` and ``--first-last-bits``; empty and None where the table's own are recorded.

    Args:
        metadata: of the quantized model.
        weights: bits of its quantized weights, in graph order: the first layer's tell of ``--first-last-bits``.
    """
    recorded = tuple(_least(metadata.get(f"onnxqat.{key}", "")) for key in ("weights", "activations"))
    if None in recorded or recorded == _of_table(metadata.get("onnxqat.backend")):
        return "", None
    ends = weights[0] if weights and weights[0] != recorded[0] else None
    return ",".join(map(str, recorded)), ends


def _least(types: str) -> int | None:
    """Return the least width of a record such as ``int8 2 bit symmetric per channel, auto``."""
    return min(map(int, re.findall(r"(\d+) bit", types)), default=None)


def _of_table(backend: str | None) -> tuple[int | None, int | None]:
    try:
        table = None if backend is None else schema.load(backend)
    except BackendError:  # a table of the user's own that is not at hand
        table = None
    if table is None:
        return None, None
    activations, weights = table_overrides.type_roles(table)
    least = [min((table.types[name].qtype().bits for name in names), default=None) for names in (weights, activations)]
    return least[0], least[1]
