"""The ONNX graph that is converted: who reads what, and what stands between a node and the quantizer of its result."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from onnxqat.deployment.litert.model import Array, Grid
from onnxqat.deployment.litert.values import Constant, Reshaped, Value
from onnxqat.graph.qdq import DEQUANTIZE, QUANTIZE

Held = Value | Constant | Reshaped


class RefusedError(Exception):
    """A node that cannot be written; the text says why."""


@dataclasses.dataclass(frozen=True)
class Target:
    """The destination of a node's result.

    Attributes:
        name: the tensor behind what is absorbed.
        grid: of the quantizer there, None where none is right behind.
        low: largest lower limit of Relu and Clip in between.
        high: smallest upper limit.
        absorbed: nodes that are written with this one.
    """

    name: str
    grid: Grid | None = None
    low: float = -math.inf
    high: float = math.inf
    absorbed: tuple[onnx.NodeProto, ...] = ()


class Graph:
    """A main graph with static shapes, :func:`onnxqat.deployment.litert.folding.folded`.

    Attributes:
        model: the model.
        held: what is known of each tensor so far.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        graph = model.graph
        self._shapes = {v.name: _shape(v) for v in (*graph.value_info, *graph.output, *graph.input)}
        self.held: dict[str, Held] = {
            item.name: Constant(numpy_helper.to_array(item), None, item.name) for item in model.graph.initializer
        }
        self._readers: dict[str, list[onnx.NodeProto | None]] = {}
        for node in model.graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        for output in model.graph.output:
            self._readers.setdefault(output.name, []).append(None)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor.

        Raises:
            RefusedError: it is not known.
        """
        held = self.held.get(name)
        found = self._shapes.get(name) if held is None else held.shape
        if found is None:
            raise RefusedError(f"the shape of {name!r} is not known before it runs")
        return found

    def grid(self, node: onnx.NodeProto) -> Grid:
        """The grid of a quantizer.

        Raises:
            RefusedError: it is computed, in blocks, or not of int8 (int32 for biases).
        """
        scale = self.held.get(node.input[1])
        zero_point = self.held.get(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        if not isinstance(scale, Constant) or isinstance(zero_point, (Value, Reshaped)):
            raise RefusedError("its scale or zero point is computed")
        zeros = zero_point.array if zero_point is not None else np.zeros(scale.shape, np.uint8)
        if zeros.dtype not in (np.int8, np.int32):
            raise RefusedError(f"its codes are {zeros.dtype}; LiteRT operators have int8 ones (--backend litert-int8)")
        attributes = attributes_of(node)
        if scale.array.size > 1 and attributes.get("block_size", 0):
            raise RefusedError("its scales are of blocks")
        single = scale.array.size == 1
        axis = None if single else int(attributes.get("axis", 1)) % len(self.shape(node.input[0]))
        scales = scale.array.astype(np.float32).reshape(-1)
        return Grid(scales, np.broadcast_to(zeros.astype(np.int64).reshape(-1), scales.shape).copy(), axis)

    def target(self, node: onnx.NodeProto) -> Target:
        """The destination of the result of `node`: through Relu and Clip to a quantizer, where each has no other reader."""
        name, low, high = node.output[0], -math.inf, math.inf
        absorbed: list[onnx.NodeProto] = []
        while True:
            readers = self._readers.get(name, [])
            reader = readers[0] if len(readers) == 1 else None
            if reader is None:
                return Target(node.output[0])
            absorbed.append(reader)
            if reader.op_type == QUANTIZE and reader.input[0] == name:
                grid = self.grid(reader)
                if grid.axis is not None:
                    return Target(node.output[0])
                return Target(reader.output[0], grid, low, high, tuple(absorbed))
            limits = self.limits(reader)
            if limits is None or reader.input[0] != name:
                return Target(node.output[0])
            low, high = (min(max(end, limits[0]), limits[1]) for end in (low, high))
            name = reader.output[0]

    def limits(self, node: onnx.NodeProto) -> tuple[float, float] | None:
        """The constant limits of a Relu or Clip; None of other nodes."""
        if node.op_type == "Relu":
            return 0.0, math.inf
        if node.op_type != "Clip":
            return None
        ends = [-math.inf, math.inf]
        for index in (1, 2):
            if len(node.input) > index and node.input[index]:
                held = self.held.get(node.input[index])
                if not isinstance(held, Constant) or held.array.size != 1:
                    return None
                ends[index - 1] = float(held.values.reshape(-1)[0])
        return ends[0], ends[1]

    def is_read(self, name: str) -> bool:
        """Check whether anything reads a tensor."""
        return bool(self._readers.get(name))


def attributes_of(node: onnx.NodeProto) -> Mapping[str, Any]:
    """Attributes of `node` by name, texts as strings."""
    found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in found.items()}


def is_quantizer(node: onnx.NodeProto) -> bool:
    """Check for Q and DQ."""
    return node.op_type in (QUANTIZE, DEQUANTIZE)


def constant_array(node: onnx.NodeProto) -> Array:
    """The numbers of a Constant node."""
    attributes = attributes_of(node)
    if "value" in attributes:
        return numpy_helper.to_array(attributes["value"])
    for name, kind in (
        ("value_float", np.float32),
        ("value_floats", np.float32),
        ("value_int", np.int64),
        ("value_ints", np.int64),
    ):
        if name in attributes:
            return np.array(attributes[name], kind)
    raise RefusedError("a constant that is neither numbers nor a tensor")


def _shape(value: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    kind = value.type.tensor_type
    if not kind.HasField("shape") or not all(d.HasField("dim_value") for d in kind.shape.dim):
        return None
    return tuple(d.dim_value for d in kind.shape.dim)
