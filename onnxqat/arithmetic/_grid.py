"""The grid of a tensor as kernels see it."""

from __future__ import annotations

import dataclasses

from onnxqat.arithmetic._arrays import Array


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """Scale, zero point and ends of a grid of integers.

    Kernels take and give *steps*, ``code - zero_point``, as floats: exact, and the value is ``steps * scale``.

    Attributes:
        scale: float32, of a shape that broadcasts with the tensor.
        zero_point: float32 of the same shape, a whole number; or a float.
        low: smallest code.
        high: largest code.
        tensor: its name, for messages.
    """

    scale: Array
    zero_point: Array
    low: int
    high: int
    tensor: str = ""

    def limited(self, steps: Array) -> Array:
        """`steps` saturated to the ends of the grid."""
        return steps.clip(self.low - self.zero_point, self.high - self.zero_point)

    def saturated(self, codes: Array) -> Array:
        """Steps of `codes`, saturated to the ends of the grid."""
        return codes.clip(self.low, self.high) - self.zero_point
