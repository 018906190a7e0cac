"""Operators of two tensors."""

from __future__ import annotations

import numpy as np

from onnxqat.deployment.litert.graph import RefusedError
from onnxqat.deployment.litert.model import Options
from onnxqat.deployment.litert.site import ACTIVATIONS, Site
from onnxqat.deployment.litert.values import Constant, Layout, Value

_FUSING = {"Add": "ADD", "Sub": "SUB", "Mul": "MUL"}
_FLOAT = {"Div": "DIV", "Pow": "POW"}
_EXTREMES = {"Max": "MAXIMUM", "Min": "MINIMUM"}
_TABLES = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions", "DIV": "DivOptions", "POW": "PowOptions"}


def arithmetic(site: Site) -> None:
    """Add, Sub and Mul on codes or floats; Div and Pow on floats."""
    kind = site.node.op_type
    integer = kind in _FUSING and site.integer(0, 1)
    code = {**_FUSING, **_FLOAT}[kind]
    numbers, layout = _operands(site, [0, 1], integer=integer)
    activation = site.fused() if integer else "NONE"
    fields: dict[str, int | float | bool] = {}
    if code in ("ADD", "SUB", "MUL", "DIV"):
        fields["FusedActivationFunction"] = ACTIVATIONS[activation]
    options: Options = (_TABLES[code], fields)
    site.write(code, numbers, layout, options, grid=site.target.grid if integer else None, activation=activation)


def extreme(site: Site) -> None:
    """Max and Min of any number of tensors; on codes all are brought onto the grid of the result."""
    count = len(site.node.input)
    integer = site.integer(*range(count))
    numbers, layout = _operands(site, list(range(count)), integer=integer, shared=True)
    grid = site.target.grid if integer else None
    options: Options = ("MaximumMinimumOptions", {})
    first, *others = numbers
    if not others:
        site.give(site.held(0))
        return
    for other in others[:-1]:
        made = site.builder.add(
            _EXTREMES[site.node.op_type], [first, other], site.shape, layout, grid, site.name, options
        )
        first = made.number
    site.write(_EXTREMES[site.node.op_type], [first, others[-1]], layout, options, grid=grid)


def total(site: Site) -> None:
    """Sum of any number of tensors, as a chain of ADD in float; of two on codes."""
    count = len(site.node.input)
    integer = count == 2 and site.integer(0, 1)
    numbers, layout = _operands(site, list(range(count)), integer=integer)
    if len(numbers) == 1:
        site.give(site.held(0))
        return
    activation = site.fused() if integer else "NONE"
    options: Options = ("AddOptions", {"FusedActivationFunction": ACTIVATIONS[activation]})
    first, *others = numbers
    for other in others[:-1]:
        first = site.builder.add("ADD", [first, other], site.shape, layout, None, site.name, options).number
    grid = site.target.grid if integer else None
    site.write("ADD", [first, others[-1]], layout, options, grid=grid, activation=activation)


def parametric_relu(site: Site) -> None:
    """PRelu with a constant slope."""
    slope = site.constant(1)
    integer = site.integer(0) and slope.grid is not None and slope.grid.axis is None
    value = site.value(0) if integer else site.floats(0)
    rank = len(value.shape)
    shaped = Constant(slope.array.reshape([1] * (rank - slope.array.ndim) + list(slope.shape)), slope.grid, slope.name)
    number = site.builder.held(shaped, value.layout, as_codes=integer)
    site.write("PRELU", [value.number, number], value.layout, grid=site.target.grid if integer else None)


def _operands(site: Site, indices: list[int], *, integer: bool, shared: bool = False) -> tuple[list[int], Layout]:
    """Numbers of the operands, in one layout and with as many axes as the result; and that layout."""
    inputs = [site.input(index) for index in indices]
    rank = max(len(item.shape) for item in inputs)
    computed = [item for item in inputs if isinstance(item, Value)]
    if not computed:
        raise RefusedError("none of its inputs is computed")
    largest = max(computed, key=lambda item: (len(item.shape), int(np.prod(item.shape))))
    layout = _aligned(site, largest, rank).layout
    numbers = []
    for item in inputs:
        if isinstance(item, Constant):
            array = item.array.reshape([1] * (rank - item.array.ndim) + list(item.shape))
            grid = item.grid
            if grid is not None and grid.axis is not None:
                grid = grid.moved(grid.axis + rank - item.array.ndim)
            as_codes = integer and grid is not None and grid.axis is None and item.array.dtype == np.int8
            if integer and not as_codes:
                raise RefusedError(f"its constant {item.name!r} is not on one int8 grid")
            number = site.builder.held(Constant(array, grid, item.name), layout, as_codes=as_codes)
            if shared and integer and site.target.grid is not None and not (grid and grid.same(site.target.grid)):
                made = Value(number, tuple(array.shape), layout, grid, np.dtype(np.int8))
                number = site.builder.quantized(made, site.target.grid, f"{item.name}/shared").number
            numbers.append(number)
            continue
        value = item if integer else site.builder.floats(item)
        if shared and integer and site.target.grid is not None:
            value = site.builder.quantized(value, site.target.grid, f"{site.name}/operand")
        numbers.append(site.builder.laid(_aligned(site, value, rank), layout).number)
    return numbers, layout


def _aligned(site: Site, value: Value, rank: int) -> Value:
    """`value` with axes of size 1 in front, as broadcasting adds them."""
    if len(value.shape) == rank:
        return value
    return site.builder.reshaped(value, (*[1] * (rank - len(value.shape)), *value.shape), f"{site.name}/operand")
