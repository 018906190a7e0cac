"""Range files of MQBench's deployment and of Knight-Finetune-Lib, and the ``clip_ranges.json`` that onnxqat writes.

Source: MQBench, mqbench/deploy/deploy_linear.py and deploy_stpu.py. A file may hold one section for a backend; an entry is
the largest magnitude (``blob_range`` of TensorRT), or ``min``, ``max`` and ``bit``, or a scale with a zero point.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxqat.placement.encodings._base import BaseFormat, Encoding, ranged, scaled

OWN = "onnxqat-qparams-1"


class Format(BaseFormat):
    """See the module."""

    def read(self, text: str, document: Any) -> dict[str, Encoding] | None:
        """See the base class."""
        if not isinstance(document, Mapping) or not document:
            return None
        if document.get("format") == OWN:
            return {entry["tensor"]: _own(entry) for entry in document["quantizers"] if entry["block_size"] is None}
        entries = dict(document)
        while len(entries) == 1 and not _is_entry(next(iter(entries.values()))):
            inner = next(iter(entries.values()))
            if not isinstance(inner, Mapping):
                return None
            entries = dict(inner)
        if not entries or not all(map(_is_entry, entries.values())):
            return None
        return {name: _encoding(entry) for name, entry in entries.items()}


def _is_entry(entry: Any) -> bool:
    if isinstance(entry, (int, float)) and not isinstance(entry, bool):
        return True
    return isinstance(entry, Mapping) and ({"min", "max"} <= set(entry) or {"scale", "zero_point"} <= set(entry))


def _encoding(entry: Any) -> Encoding:
    if isinstance(entry, (int, float)):
        return ranged(-abs(entry), abs(entry), None)
    bits = int(entry["bit"]) if "bit" in entry else None
    if "min" in entry:
        return ranged(_bare(entry["min"]), _bare(entry["max"]), bits)
    signed = str(entry.get("type", "")).startswith("int") or entry.get("quant_min", 0) < 0
    zero_points = np.asarray(_bare(entry["zero_point"]), np.int64)
    return scaled(_bare(entry["scale"]), zero_points + (2 ** ((bits or 8) - 1) if signed else 0), bits)


def _own(entry: Mapping[str, Any]) -> Encoding:
    low, high = entry["quant_min"], entry["quant_max"]
    bits = (high - low).bit_length()
    zero_points = np.asarray(entry["zero_point"], np.int64)
    return scaled(entry["scale"], zero_points + (2 ** (bits - 1) if low < 0 else 0), bits)


def _bare(values: Any) -> Any:
    """A number in place of a list of one."""
    return values[0] if isinstance(values, list) and len(values) == 1 else values
