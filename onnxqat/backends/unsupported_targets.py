"""Targets that cannot have a table, with the reason: their names are known, so that the answer is not "no such name"."""

from __future__ import annotations

REFUSED = {
    "nnie": (
        "HiSilicon NNIE quantizes on a logarithmic grid (MQBench's NNIEFakeQuantize rounds the logarithm of a value), "
        "which QuantizeLinear and DequantizeLinear cannot express: their steps are equal"
    ),
}
"""Name to reason."""
