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
        ends: smallest and largest step that an operator in front of the quantizer leaves; None: those of the codes.
    """

    scale: Array
    zero_point: Array
    low: int
    high: int
    tensor: str = ""
    ends: tuple[Array, Array] | None = None

    def limited(self, steps: Array) -> Array:
        """`steps` saturated to the ends of the grid."""
        low, high = self.ends or (self.low - self.zero_point, self.high - self.zero_point)
        return steps.clip(low, high)

    def saturated(self, codes: Array) -> Array:
        """Steps of `codes`, saturated to the ends of the grid."""
        return self.limited(codes - self.zero_point)
