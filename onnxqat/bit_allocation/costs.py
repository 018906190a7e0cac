"""Costs of a layer at a width: bytes of its weights, bits that its multiplications take, multiplications in float, time."""

from __future__ import annotations

import dataclasses
from typing import Literal

from onnxqat.bit_allocation.candidates import BYTE, FLOAT_BITS, Layer, Widths
from onnxqat.bit_allocation.layer_times import LayerTimes

Cost = Literal["weight-bytes", "multiply-bits", "float-multiplications", "latency"]

UNITS: dict[Cost, str] = {
    "weight-bytes": "bytes of weights",
    "multiply-bits": "multiply-bits a sample",
    "float-multiplications": "multiplications in float a sample",
    "latency": "ms a sample",
}
"""Name of the unit of each cost."""
_WHOLE: dict[Cost, float] = {"weight-bytes": 8, "multiply-bits": 1, "float-multiplications": 1, "latency": 1e6}
"""Whole units in one unit of :data:`UNITS`: bits of a byte, nanoseconds of a millisecond."""


def units(layer: Layer, widths: Widths, cost: Cost, times: LayerTimes | None = None) -> int:
    """The cost as a whole number of its smallest unit.

    1. ``weight-bytes``: bits of the codes of the weight, packed at their width. Scales and biases do not depend on it.
    2. ``multiply-bits``: multiplications of one sample times the widths of both factors (bit operations: Baskin et al.,
       "UNIQ", 2018), which the time and energy of multipliers grow with.
    3. ``float-multiplications``: multiplications of one sample where the layer stays in float, 0 on integers.
    4. ``latency``: nanoseconds of the layer's kernel for one sample, in float or on integers, as measured.

    Args:
        layer: its sizes.
        widths: of its weight and activations.
        cost: which of the four.
        times: measured times, for ``latency``.
    """
    if cost == "weight-bytes":
        return layer.weights * widths.weight
    if cost == "multiply-bits":
        return layer.macs * widths.weight * widths.activation
    if cost == "float-multiplications":
        return layer.macs if widths.is_float else 0
    assert times is not None  # measured before any latency is asked for
    return times.nanoseconds(layer.placed, is_float=widths.is_float)


def amount(total: float, cost: Cost) -> float:
    """`total` whole units in the unit of `cost`: bytes for weights, milliseconds for latency."""
    return total / _WHOLE[cost]


def whole(amount: float, cost: Cost) -> float:
    """`amount` in whole units; the inverse of :func:`amount`."""
    return amount * _WHOLE[cost]


@dataclasses.dataclass(frozen=True)
class LayerCosts:
    """One cost of all layers that are chosen for.

    Attributes:
        cost: which one.
        layers: the layers.
        times: measured times, for ``latency``.
    """

    cost: Cost
    layers: tuple[Layer, ...]
    times: LayerTimes | None = None

    def units(self, layer: Layer, widths: Widths) -> int:
        """Return the cost of one layer as of :func:`units`."""
        return units(layer, widths, self.cost, self.times)

    @property
    def fixed(self) -> int:
        """Whole units that every choice costs: the time of all other kernels."""
        if self.times is None:
            return 0
        chosen = sum(self.times.nanoseconds(layer.placed, is_float=False) for layer in self.layers)
        return max(round(1e9 * self.times.integer_total) - chosen, 0)

    def total(self, units: int) -> float:
        """The cost of a choice whose layers have `units` together, in its unit."""
        return amount(units + self.fixed, self.cost)

    @property
    def whole(self) -> float:
        """The cost that shares are of: at 8 bits everywhere, and of multiplications and times in float that of the float model."""
        if self.times is not None:
            return amount(1e9 * self.times.float_total, self.cost)
        bits = FLOAT_BITS if self.cost == "float-multiplications" else BYTE
        return amount(sum(self.units(layer, Widths(bits, bits)) for layer in self.layers), self.cost)
