"""Codes brought from one grid to another, alone or while branches are joined."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from onnxqat.arithmetic import Grid
from onnxqat.arithmetic._arrays import Array
from onnxqat.bridge.functional import scatter
from onnxqat.bridge.integer import tiles
from onnxqat.bridge.integer.unit import LIMITS, Unit, as_numpy

SCATTERS = (scatter.scatter_each, scatter.scatter_points)
JOINS: dict[Callable[..., Any], tuple[int, ...]] = {
    torch.cat: (0,),
    torch.stack: (0,),
    torch.where: (1, 2),
    torch.maximum: (0, 1),
    torch.minimum: (0, 1),
    **dict.fromkeys(SCATTERS, (0, 2)),
}
"""Functions whose results are elements of several tensors, and the arguments that these are; a list is several."""


def moves(node: fx.Node) -> bool:
    """Check whether `node` joins tensors by their places, whatever their numbers are."""
    return is_join(node) and node.target not in (torch.maximum, torch.minimum)


def is_join(node: fx.Node) -> bool:
    """Check whether `node` calls one of :data:`JOINS` without a sum or the like of what meets at one place."""
    return node.target in JOINS and (node.target not in SCATTERS or node.args[-1] == "none")


def unchanged(x: Tensor) -> Tensor:
    """Return `x`: the operation of a quantizer that reads another one's grid."""
    return x


class Requantization(Unit):
    """A quantizer of what lies on other grids: each tensor gets the steps of the result, then they are joined.

    Relu, Clip and data movement in between, as the operation or behind it, work on the result's grid.
    """

    def operands(self, args: tuple[Any, ...]) -> list[Tensor]:
        """See the base class."""
        return list(self._tensors(args))

    def exact(self, *args: Any) -> tuple[Tensor, Tensor | None]:
        """See the base class."""
        with torch.no_grad():
            output = self.output_grid()
            on_grid = iter([self._on_grid(x, self.grid(i, 0), output) for i, x in enumerate(self._tensors(args))])
            result = self._joined(self._replaced(args, on_grid), output)
        return result, self.plain(*args) if torch.is_grad_enabled() else None

    def in_numpy(self, *args: Any) -> Array:
        """See the base class; what moves numbers is torch's."""
        output = self.output_grid()
        arrays = (x.numpy() if isinstance(x, Tensor) else x for x in self._tensors(args))
        found = [self._requantized(x, as_numpy(self.grid(i, 0)), as_numpy(output)) for i, x in enumerate(arrays)]
        others = tuple(torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in args)
        return self._joined(self._replaced(others, iter(map(torch.from_numpy, found))), output).numpy()

    def output_grid(self) -> Grid:
        """Grid of the result."""
        assert self.quantizer is not None
        return self.grid_of(self.quantizer, 0)

    def _on_grid(self, x: Tensor, grid: Grid, output: Grid) -> Tensor:
        return tiles.elementwise(lambda held: self._requantized(held, grid, output), x.detach())

    def _requantized(self, x: Array, grid: Grid, output: Grid) -> Array:
        return self.arithmetic.convert((x / grid.scale).round(), grid, output) * output.scale

    def _joined(self, args: tuple[Any, ...], output: Grid) -> Tensor:
        result: Tensor = self.operation(*args)
        for function, rest in ((self.operation, ()), *self.activations):
            result = result if function is self.operation else function(result, *rest)
            if function in LIMITS:  # the limit itself is rounded to the grid
                result = (result / output.scale).round() * output.scale
        return result

    def _tensors(self, args: tuple[Any, ...]) -> Iterator[Tensor]:
        """The arguments that lie on grids, as :data:`JOINS` names them."""
        for place in JOINS.get(self.operation, (0,)):
            yield from args[place] if isinstance(args[place], (list, tuple)) else (args[place],)

    def _replaced(self, args: tuple[Any, ...], tensors: Iterator[Tensor]) -> tuple[Any, ...]:
        """`args` with `tensors` for those that :meth:`_tensors` gives."""
        made = list(args)
        for place in JOINS.get(self.operation, (0,)):
            held = args[place]
            made[place] = [next(tensors) for _ in held] if isinstance(held, (list, tuple)) else next(tensors)
        return tuple(made)
