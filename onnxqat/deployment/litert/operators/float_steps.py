"""Operators of LiteRT in float that one ONNX node is written out with."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from onnxqat.deployment.litert.model import Array, Options
from onnxqat.deployment.litert.site import Site
from onnxqat.deployment.litert.values import Value

_OPTIONS = {
    **{code: f"{code.capitalize()}Options" for code in ("ADD", "SUB", "MUL", "DIV", "EXP", "ABS", "NEG")},
    **dict.fromkeys(("MAXIMUM", "MINIMUM"), "MaximumMinimumOptions"),
}
"""Tables of options that operators have; none has a field that is not at its default."""


class FloatSteps:
    """Writes operators on float tensors, one behind the other.

    Args:
        site: the node that they stand for.
    """

    def __init__(self, site: Site) -> None:
        self.site = site

    def made(self, code: str, value: Value, other: Value | None = None) -> Value:
        """The result of an operator on `value`, and on `other`, which broadcasts to it and lies alike."""
        numbers = [value.number] if other is None else [value.number, other.number]
        return self._added(code, numbers, value)

    def with_numbers(self, code: str, value: Value, numbers: Array | float) -> Value:
        """The result of an operator on `value` and constants that broadcast to it as those of ONNX do."""
        return self._added(code, [value.number, self._constant(code, value, np.asarray(numbers))], value)

    def over(self, number: float, value: Value) -> Value:
        """`number` divided by `value`."""
        return self._added("DIV", [self._constant("DIV", value, np.asarray(number)), value.number], value)

    def mean(self, value: Value, axes: Collection[int]) -> Value:
        """Mean of `value` along `axes` of the ONNX tensor, which stay with size 1."""
        along = self.site.builder.integers(f"{self.site.name}/axes", sorted(value.place(axis) for axis in axes))
        shape = tuple(1 if axis in axes else size for axis, size in enumerate(value.shape))
        options: Options = ("ReducerOptions", {"KeepDims": True})
        return self.site.builder.add("MEAN", [value.number, along], shape, value.layout, None, self.site.name, options)

    def _constant(self, code: str, value: Value, numbers: Array) -> int:
        laid = numbers.reshape([1] * (len(value.shape) - numbers.ndim) + list(numbers.shape)).transpose(value.layout)
        return self.site.builder.constant(f"{self.site.name}/{code}", np.ascontiguousarray(laid, np.float32))

    def _added(self, code: str, numbers: list[int], value: Value) -> Value:
        options: Options = (_OPTIONS.get(code, ""), {})
        return self.site.builder.add(code, numbers, value.shape, value.layout, None, self.site.name, options)
