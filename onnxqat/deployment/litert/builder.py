"""Tensors and operators of a LiteRT model while it grows; changes of layout and of grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from onnxqat.deployment.litert.model import NO_OPTIONS, Array, Grid, Model, Operator, Options, Tensor
from onnxqat.deployment.litert.values import Constant, Layout, Value, plain, reshaped_layout

FLOAT = np.dtype(np.float32)
CODES = np.dtype(np.int8)


class Builder:
    """Collects tensors and operators; a change that was made once is found again."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.operators: list[Operator] = []
        self._names: dict[str, int] = {}
        self._made: dict[tuple[object, ...], Value] = {}

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        dtype: np.dtype[np.generic],
        grid: Grid | None = None,
        data: Array | None = None,
    ) -> int:
        """Number of a new tensor; its name gets a suffix where another one has it."""
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        unique = f"{name};{count}" if count else name
        self.tensors.append(Tensor(unique, tuple(shape), dtype, grid, data))
        return len(self.tensors) - 1

    def constant(self, name: str, array: Array, grid: Grid | None = None) -> int:
        """Number of a new constant."""
        return self.tensor(name, array.shape, array.dtype, grid, np.ascontiguousarray(array))

    def integers(self, name: str, numbers: Sequence[int] | Sequence[Sequence[int]]) -> int:
        """Number of a new constant of int32: axes, sizes and the like."""
        return self.constant(name, np.array(numbers, np.int32))

    def add(
        self,
        code: str,
        inputs: Sequence[int],
        shape: Sequence[int],
        layout: Layout,
        grid: Grid | None,
        name: str,
        options: Options = NO_OPTIONS,
        dtype: np.dtype[np.generic] | None = None,
    ) -> Value:
        """Write an operator with one output and return that.

        Args:
            code: see :class:`Operator`.
            inputs: the same.
            shape: of the ONNX tensor that it makes.
            layout: how that lies.
            grid: of that; None: floats.
            name: of that.
            options: see :class:`Operator`.
            dtype: of that; None: float32, or int8 where there is a grid.
        """
        kind = dtype or (FLOAT if grid is None else CODES)
        stored = [shape[axis] for axis in layout]
        number = self.tensor(name, stored, kind, grid)
        self.operators.append(Operator(code, tuple(inputs), (number,), options))
        return Value(number, tuple(shape), tuple(layout), grid, kind)

    def laid(self, value: Value, layout: Layout) -> Value:
        """`value` in another layout, by a transposition; by a new shape where only axes of size 1 move."""
        if value.layout == layout:
            return value
        moving = [[axis for axis in order if value.shape[axis] != 1] for order in (value.layout, layout)]
        name = f"{self.tensors[value.number].name}/layout"
        key = ("layout", value.number, value.shape, layout)
        if moving[0] == moving[1]:
            return self._again(key, lambda: self._shaped(value, value.shape, layout, name))
        return self._again(key, lambda: self._transposed(value, layout, name))

    def _transposed(self, value: Value, layout: Layout, name: str) -> Value:
        order = self.integers(f"{name}/order", [value.layout.index(axis) for axis in layout])
        inputs, options = [value.number, order], ("TransposeOptions", dict[str, int]())
        return self.add("TRANSPOSE", inputs, value.shape, layout, value.grid, name, options, value.dtype)

    def reshaped(self, value: Value, shape: Sequence[int], name: str) -> Value:
        """`value` in another shape; numbers move only where the new axes do not lie as the old ones did."""
        if tuple(shape) == value.shape:
            return value
        layout = reshaped_layout(value.shape, value.layout, shape)
        if layout is None:
            value, layout = self.laid(value, plain(len(value.shape))), plain(len(shape))
        if [shape[axis] for axis in layout] == list(value.stored):
            return Value(value.number, tuple(shape), layout, value.grid, value.dtype)
        key = ("shape", value.number, value.layout, value.shape, tuple(shape))
        return self._again(key, lambda: self._shaped(value, shape, layout, name))

    def _shaped(self, value: Value, shape: Sequence[int], layout: Layout, name: str) -> Value:
        sizes = [shape[axis] for axis in layout]
        assert math.prod(sizes) == math.prod(value.shape)
        target = self.integers(f"{name}/shape", sizes)
        return self.add(
            "RESHAPE", [value.number, target], shape, layout, value.grid, name, ("ReshapeOptions", {}), value.dtype
        )

    def quantized(self, value: Value, grid: Grid, name: str) -> Value:
        """`value` on `grid`, by QUANTIZE where it is not there already."""
        if value.grid is not None and value.grid.same(grid):
            return value
        key = ("grid", value.number, value.layout, value.shape, *grid.scale.tolist(), *grid.zero_point.tolist())
        return self._again(
            key,
            lambda: self.add(
                "QUANTIZE", [value.number], value.shape, value.layout, grid, name, ("QuantizeOptions", {})
            ),
        )

    def floats(self, value: Value) -> Value:
        """The values of `value` as floats, by DEQUANTIZE where they are codes."""
        if value.grid is None:
            return value
        name = f"{self.tensors[value.number].name}/float"
        return self._again(
            ("float", value.number, value.layout, value.shape),
            lambda: self.add(
                "DEQUANTIZE", [value.number], value.shape, value.layout, None, name, ("DequantizeOptions", {})
            ),
        )

    def held(self, constant: Constant, layout: Layout, *, as_codes: bool) -> int:
        """Number of a constant tensor that lies as `layout` says."""
        array = constant.array if as_codes else constant.values.astype(np.float32, copy=False)
        grid = constant.grid if as_codes else None
        moved = None if grid is None else grid.moved(None if grid.axis is None else layout.index(grid.axis))
        return self.constant(constant.name, array.transpose(layout), moved)

    def _again(self, key: tuple[object, ...], make: Callable[[], Value]) -> Value:
        """The result that `make` gave for this key before, or gives now."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def model(self, inputs: Sequence[tuple[str, int]], outputs: Sequence[tuple[str, int]], description: str) -> Model:
        """The model of what was written."""
        return Model(tuple(self.tensors), tuple(self.operators), tuple(inputs), tuple(outputs), description)
