"""Costs of a layer at a width: bytes of its weights, and bits that its multiplications take."""

from __future__ import annotations

from typing import Literal

from onnxqat.bit_allocation.candidates import Layer, Widths

Cost = Literal["weight-bytes", "multiply-bits"]


def bits(layer: Layer, widths: Widths, cost: Cost) -> int:
    """The cost in bits, a whole number.

    1. ``weight-bytes``: the codes of the weight, packed at their width. Scales and biases do not depend on it.
    2. ``multiply-bits``: multiplications of one sample times the widths of both factors (bit operations: Baskin et al.,
       "UNIQ", 2018), which the time and energy of multipliers grow with.

    Args:
        layer: its sizes.
        widths: of its weight and activations.
        cost: which of the two.
    """
    if cost == "weight-bytes":
        return layer.weights * widths.weight
    return layer.macs * widths.weight * widths.activation


def amount(total: float, cost: Cost) -> float:
    """`total` bits in the unit of `cost`: bytes for weights."""
    return total / 8 if cost == "weight-bytes" else total
