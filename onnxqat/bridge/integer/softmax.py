"""Softmax of codes."""

from __future__ import annotations

from typing import Any

from onnxqat.arithmetic import Grid
from onnxqat.arithmetic._arrays import Array
from onnxqat.bridge.integer.unit import Formula


class Softmax(Formula):
    """Shares of a row."""

    def values(self, grids: tuple[Grid, ...], output: Grid | None, *args: Any) -> Array:
        """See the base class."""
        x, axis = args
        assert output is not None
        rows = (x / grids[0].scale).round().swapaxes(axis, -1)
        return self.arithmetic.softmax(rows, grids[0], output).swapaxes(axis, -1) * output.scale
