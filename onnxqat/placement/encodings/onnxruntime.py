"""``TensorQuantOverrides`` of onnxruntime's quantizer as JSON: tensor name -> a list with an entry for each channel.

Source: onnxruntime/python/tools/quantization/tensor_quant_overrides.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from onnxqat.placement.encodings._base import BaseFormat, Encoding, one_or_more, ranged, scaled

KNOWN = {"quant_type", "scale", "zero_point", "rmin", "rmax", "symmetric", "reduce_range", "axis", "convert"}


class Format(BaseFormat):
    """Scales with zero points, or ranges; entries that state a type alone say nothing."""

    def read(self, text: str, document: Any) -> dict[str, Encoding] | None:
        """See the base class."""
        if not isinstance(document, Mapping) or not document or not all(map(_is_entry, document.values())):
            return None
        found = {name: _encoding(rows) for name, rows in document.items()}
        return {name: encoding for name, encoding in found.items() if encoding is not None}


def _is_entry(rows: Any) -> bool:
    return isinstance(rows, list) and bool(rows) and all(isinstance(row, Mapping) and set(row) <= KNOWN for row in rows)


def _encoding(rows: list[Mapping[str, Any]]) -> Encoding | None:
    named = re.fullmatch(r"(?:QuantType\.)?Q(U?)Int(\d+)", str(rows[0].get("quant_type", "")))
    bits = int(named[2]) if named is not None else None
    if "scale" in rows[0]:
        shift = 0 if named is not None and named[1] else 2 ** ((bits or 8) - 1)
        zeros = [int(row["zero_point"]) + shift for row in rows]
        return scaled(one_or_more([row["scale"] for row in rows]), one_or_more(zeros), bits)
    if "rmin" in rows[0]:
        return ranged(one_or_more([r["rmin"] for r in rows]), one_or_more([r["rmax"] for r in rows]), bits)
    return None
