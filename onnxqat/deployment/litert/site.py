"""One ONNX node while operators are written for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from onnxqat.deployment.litert.builder import Builder
from onnxqat.deployment.litert.graph import Graph, Held, RefusedError, attributes_of
from onnxqat.deployment.litert.model import NO_OPTIONS, Array, Grid, Options
from onnxqat.deployment.litert.values import Constant, Layout, Reshaped, Value, plain

_FUSED = {(0.0, math.inf): "RELU", (0.0, 6.0): "RELU6", (-1.0, 1.0): "RELU_N1_TO_1"}
ACTIVATIONS = {"NONE": 0, "RELU": 1, "RELU_N1_TO_1": 2, "RELU6": 3}
"""Numbers of the schema's ``ActivationFunctionType``."""
LOWEST, HIGHEST = -128, 127


class Site:
    """The inputs, attributes and result of one node.

    Attributes:
        node: the node.
        graph: what it belongs to.
        builder: what operators are written to.
        attributes: by name.
        target: where its first result goes.
    """

    def __init__(self, node: onnx.NodeProto, graph: Graph, builder: Builder) -> None:
        self.node, self.graph, self.builder = node, graph, builder
        self.attributes = attributes_of(node)
        self.target = graph.target(node)
        self.absorbed: tuple[onnx.NodeProto, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first result."""
        return self.graph.shape(self.node.output[0])

    @property
    def name(self) -> str:
        """Name of the tensor of the result: that which the quantizer behind it reads, where there is one."""
        return str(self.target.absorbed[-1].input[0] if self.target.absorbed else self.node.output[0])

    def has(self, index: int) -> bool:
        """Check for an input."""
        return len(self.node.input) > index and bool(self.node.input[index])

    def held(self, index: int) -> Held:
        """An input as it is known."""
        found = self.graph.held.get(self.node.input[index])
        if found is None:
            raise RefusedError(f"its input {self.node.input[index]!r} could not be written")
        return found

    def input(self, index: int) -> Value | Constant:
        """An input, reshaped where it is to be."""
        found = self.held(index)
        if isinstance(found, Reshaped):
            return self.builder.reshaped(found.source, found.shape, found.name)
        return found

    def value(self, index: int) -> Value:
        """An input that is computed, or a constant written as a tensor of its own."""
        found = self.input(index)
        if isinstance(found, Value):
            return found
        layout = plain(found.array.ndim)
        codes = found.grid is not None and found.array.dtype == np.int8 and found.grid.axis is None
        array = found.array if codes or found.grid is None else found.values
        grid = found.grid if codes else None
        number = self.builder.constant(found.name, array, grid)
        return Value(number, found.shape, layout, grid, array.dtype)

    def constant(self, index: int) -> Constant:
        """An input that is constant.

        Raises:
            RefusedError: it is computed.
        """
        found = self.input(index)
        if isinstance(found, Constant):
            return found
        raise RefusedError(f"its input {self.node.input[index]!r} is no constant")

    def numbers(self, index: int, attribute: str = "") -> list[int]:
        """Whole numbers of a constant input or, in older operator sets, of an attribute."""
        if attribute in self.attributes:
            found = self.attributes[attribute]
            return [int(n) for n in found] if isinstance(found, (list, tuple)) else [int(found)]
        return [int(n) for n in self.constant(index).array.reshape(-1)]

    def integer(self, *indices: int) -> bool:
        """Check whether these inputs are codes and the result goes on a grid, so that an int8 operator is right."""
        return self.target.grid is not None and all(self.held(index).grid is not None for index in indices)

    def floats(self, index: int) -> Value:
        """An input that is computed, as floats."""
        return self.builder.floats(self.value(index))

    def fused(self) -> str:
        """The activation function that an operator takes over: Relu, Relu6 or none; what is left is written behind."""
        name = _FUSED.get((self.target.low, self.target.high))
        return "NONE" if name is None or self.target.grid is None else name

    def write(
        self,
        code: str,
        inputs: Sequence[int],
        layout: Layout,
        options: Options = NO_OPTIONS,
        *,
        grid: Grid | None = None,
        shape: Sequence[int] | None = None,
        activation: str = "NONE",
    ) -> None:
        """Write the operator that makes the result of the node, and what stands between it and its quantizer.

        Args:
            code: of the operator.
            inputs: numbers of tensors.
            layout: of the result.
            options: of the operator.
            grid: that the operator gives; None: floats.
            shape: of the result; None: as inferred.
            activation: function that the operator has taken over.
        """
        made = self.builder.add(code, inputs, self.shape if shape is None else shape, layout, grid, self.name, options)
        if grid is None:
            self.give(made)
        else:
            self.finish(made, limited=activation != "NONE")

    def finish(self, made: Value, *, limited: bool = False) -> None:
        """Bring codes to the quantizer behind the node: onto its grid, then between the limits in front of it.

        Args:
            made: the result on some grid.
            limited: whether it is within the limits already.
        """
        target = self.target
        assert target.grid is not None
        made = self.builder.quantized(made, target.grid, self.name)
        if not limited:
            made = self._limited(made, target.grid)
        self.graph.held[target.name] = made
        self.absorbed = target.absorbed

    def give(self, made: Held) -> None:
        """Note the result of the node itself; quantizers behind it are written on their own."""
        self.graph.held[self.node.output[0]] = made

    def _limited(self, made: Value, grid: Grid) -> Value:
        """`made` between the limits, by MAXIMUM and MINIMUM with a code; nothing where the grid ends within them."""
        for code, end, sign in (("MAXIMUM", self.target.low, 1), ("MINIMUM", self.target.high, -1)):
            if math.isinf(end):
                continue
            limit = grid.code(end)
            edge = LOWEST if sign > 0 else HIGHEST
            if sign * (limit - edge) <= 0:
                continue
            number = self.builder.constant(
                f"{self.name}/limit", np.array([np.clip(limit, LOWEST, HIGHEST)], np.int8), grid
            )
            options: Options = ("MaximumMinimumOptions", {})
            made = self.builder.add(code, [made.number, number], made.shape, made.layout, grid, self.name, options)
        return made

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute, or its default."""
        return self.attributes.get(name, default)


def scalar(array: Array) -> float:
    """The number in an array of one element."""
    if array.size != 1:
        raise RefusedError(f"it has {array.size} numbers where LiteRT has one")
    return float(array.reshape(-1)[0])
