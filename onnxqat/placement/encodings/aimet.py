"""Encodings of AIMET, which Qualcomm's converters take with ``--quantization_overrides``: versions 0.6.1, 1.0.0, 2.0.0.

Source: AIMET documentation, "Encoding format specification". Offsets are minus the zero point in unsigned codes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from onnxqat.placement.encodings._base import BaseFormat, Encoding, one_or_more, ranged, scaled

SECTIONS = ("activation_encodings", "param_encodings")


class Format(BaseFormat):
    """Sections of activations and parameters, or one list of encodings (2.0.0)."""

    def read(self, text: str, document: Any) -> dict[str, Encoding] | None:
        """See the base class; entries in float say nothing."""
        if not isinstance(document, Mapping):
            return None
        if isinstance(document.get("encodings"), list):
            found = ((entry["name"], _second(entry)) for entry in document["encodings"])
        elif any(section in document for section in SECTIONS):
            found = (pair for section in SECTIONS for pair in _section(document.get(section) or {}))
        else:
            return None
        return {name: encoding for name, encoding in found if encoding is not None}


def _section(section: Any) -> Iterator[tuple[str, Encoding | None]]:
    if isinstance(section, list):
        yield from ((entry["name"], _first(entry)) for entry in section)
        return
    yield from ((name, _oldest(rows)) for name, rows in section.items())


def _oldest(rows: list[dict[str, Any]]) -> Encoding | None:
    """Version 0.6.1: an entry for each channel; MQBench leaves scales out."""
    if str(rows[0].get("dtype", "int")).lower() != "int":
        return None
    bits = int(rows[0]["bitwidth"])
    if "scale" in rows[0] and "offset" in rows[0]:
        offsets = one_or_more([-int(row["offset"]) for row in rows])
        return scaled(one_or_more([row["scale"] for row in rows]), offsets, bits)
    return ranged(one_or_more([row["min"] for row in rows]), one_or_more([row["max"] for row in rows]), bits)


def _first(entry: dict[str, Any]) -> Encoding | None:
    """Version 1.0.0: lists of scales and offsets."""
    if str(entry.get("dtype", "INT")).upper() != "INT":
        return None
    offsets = [-int(offset) for offset in entry["offset"]]
    return scaled(one_or_more(entry["scale"]), one_or_more(offsets), int(entry["bw"]))


def _second(entry: dict[str, Any]) -> Encoding | None:
    """Version 2.0.0: what QuantizeLinear takes, zero points in codes of the type."""
    found = re.fullmatch(r"(u?)int(\d+)", str(entry["output_dtype"]).lower())
    if found is None:
        return None
    bits = int(found[2])
    zero_points = entry.get("y_zero_point") or 0
    shift = 0 if found[1] else 2 ** (bits - 1)
    if isinstance(zero_points, list):
        return scaled(entry["y_scale"], [int(zero) + shift for zero in zero_points], bits)
    return scaled(entry["y_scale"], int(zero_points) + shift, bits)
