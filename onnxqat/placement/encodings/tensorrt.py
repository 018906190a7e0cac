"""Calibration cache of TensorRT: a line for each activation, the bits of its float32 scale in hexadecimal."""

from __future__ import annotations

import struct
from typing import Any

from onnxqat.placement.encodings._base import BaseFormat, Encoding, scaled


class Format(BaseFormat):
    """Symmetric int8; see the module."""

    def read(self, text: str, document: Any) -> dict[str, Encoding] | None:
        """See the base class."""
        header, *lines = text.splitlines() or [""]
        if not header.startswith("TRT-"):
            return None
        found = (line.rpartition(":") for line in lines if line.strip())
        return {name: scaled(_number(digits.strip()), 128, 8) for name, _, digits in found}


def _number(digits: str) -> float:
    return float(struct.unpack(">f", bytes.fromhex(digits.rjust(8, "0")))[0])
