"""From a deploy form to a LiteRT model, node by node; what cannot be written is refused by name before anything is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

from onnxqat.deployment.base_compiler import Kind
from onnxqat.deployment.litert.builder import Builder
from onnxqat.deployment.litert.folding import folded
from onnxqat.deployment.litert.graph import Graph, RefusedError, is_quantizer
from onnxqat.deployment.litert.model import Array, Grid, Model
from onnxqat.deployment.litert.operators import (
    activations,
    convolution,
    curves,
    elementwise,
    linear,
    movement,
    normalization,
    pooling,
)
from onnxqat.deployment.litert.site import HIGHEST, LOWEST, Site
from onnxqat.deployment.litert.values import Constant, Reshaped, Value, boundary_layout
from onnxqat.errors import CheckError
from onnxqat.graph.qdq import QUANTIZE

LOWERINGS: Mapping[str, Callable[[Site], None]] = {
    "Conv": convolution.convolution,
    "ConvTranspose": convolution.transposed_convolution,
    "Gemm": linear.gemm,
    "MatMul": linear.matmul,
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow"), elementwise.arithmetic),
    **dict.fromkeys(("Max", "Min"), elementwise.extreme),
    "Sum": elementwise.total,
    "PRelu": elementwise.parametric_relu,
    "MaxPool": pooling.max_pool,
    "AveragePool": pooling.average_pool,
    "GlobalAveragePool": pooling.global_average,
    "GlobalMaxPool": pooling.global_max,
    **dict.fromkeys(("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum"), pooling.reduction),
    **dict.fromkeys(("Sigmoid", "Tanh"), activations.fixed),
    **dict.fromkeys(("Softmax", "LogSoftmax"), activations.row),
    **dict.fromkeys(("HardSwish", "Exp", "Log", "Sqrt", "Abs", "Neg", "Sin", "Cos", "Floor"), activations.free),
    **dict.fromkeys(curves.OPERATORS, curves.curve),
    "Gelu": activations.gelu,
    "LeakyRelu": activations.leaky_relu,
    **dict.fromkeys(("Relu", "Clip"), activations.limits),
    "HardSigmoid": activations.hard_sigmoid,
    "LRN": activations.response_normalization,
    "BatchNormalization": activations.batch_normalization,
    "LpNormalization": activations.unit_length,
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), normalization.over_last_axes),
    "InstanceNormalization": normalization.of_channels,
    **dict.fromkeys(("Identity", "Dropout", "Cast"), movement.identity),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), movement.reshape),
    "Transpose": movement.transpose,
    "Concat": movement.concat,
    "Split": movement.split,
    "Slice": movement.piece,
    "Pad": movement.pad,
    "Gather": movement.gather,
    **dict.fromkeys(("Expand", "Tile"), movement.expand),
    "DepthToSpace": movement.depth_to_space,
    "SpaceToDepth": movement.space_to_depth,
    "Resize": movement.resize,
}
"""The function that writes each ONNX operator."""

_AROUND = ("QUANTIZE", "DEQUANTIZE", "TRANSPOSE", "RESHAPE")
"""Operators that say nothing about how a node computes."""
_SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Port:
    """An input or output of the model.

    Attributes:
        name: of the ONNX tensor.
        layout: axes of the ONNX tensor in the order in which they lie.
        scale: of the codes; None where it is no tensor of codes.
        zero_point: of the codes.
    """

    name: str
    layout: tuple[int, ...]
    scale: float | None = None
    zero_point: int = 0


@dataclasses.dataclass(frozen=True)
class Written:
    """The operators that were written for a node.

    Attributes:
        name: of the node, or of its first output.
        kind: see :class:`onnxqat.deployment.base_compiler.NodeResult`.
        operators: builtin operators.
        tensors: LiteRT tensors that these make.
    """

    name: str
    kind: Kind
    operators: tuple[str, ...]
    tensors: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Converted:
    """A LiteRT model and how it belongs to the ONNX model.

    Attributes:
        model: to be written.
        inputs: in the order of the ONNX model.
        outputs: the same.
        nodes: one for each node but quantizers and constants.
    """

    model: Model
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    nodes: tuple[Written, ...]


def convert(model: onnx.ModelProto) -> Converted:
    """Convert a deploy form whose shapes are static.

    Codes are int8, with one scale for activations; images of four axes are channels last, at the model's inputs and
    outputs too. A node whose inputs and result are not all quantized computes in float32.

    Raises:
        CheckError: ``handoff-failed``, with the nodes that LiteRT has no operator for.
    """
    return _Conversion(model).run()


class _Conversion:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.proto = folded(model)
        self.graph, self.builder = Graph(self.proto), Builder()
        self.written: list[Written] = []
        self.refused: list[str] = []
        self.done: set[int] = set()

    def run(self) -> Converted:
        """Everything in order."""
        inputs = [self._input(value) for value in self.proto.graph.input if value.name not in self.graph.held]
        for node in self.proto.graph.node:
            if id(node) not in self.done:
                self._node(node)
        if self.refused:
            more = f" and {len(self.refused) - _SHOWN} more" if len(self.refused) > _SHOWN else ""
            raise CheckError(
                "handoff-failed",
                f"litert has no operator for {'; '.join(self.refused[:_SHOWN])}{more}",
                hint="cut them off (onnxqat cut), or choose another backend",
            )
        outputs = [self._output(value.name) for value in self.proto.graph.output]
        ports = [port for port, _ in inputs], [port for port, _ in outputs]
        made = self.builder.model(
            [(port.name, number) for port, number in inputs],
            [(port.name, number) for port, number in outputs],
            "written by onnxqat",
        )
        return Converted(made, tuple(ports[0]), tuple(ports[1]), tuple(self.written))

    def _input(self, value: onnx.ValueInfoProto) -> tuple[Port, int]:
        """An input: codes where nothing but one quantizer reads it, else floats."""
        shape = self.graph.shape(value.name)
        layout = boundary_layout(len(shape))
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        readers = [node for node in self.proto.graph.node if value.name in node.input]
        if readers and all(reader.op_type == QUANTIZE for reader in readers):
            try:
                grids = [self.graph.grid(reader) for reader in readers]
            except RefusedError:  # which the quantizer's own turn tells
                grids = []
            grid = next(iter(grids), None)
            if grid is not None and grid.axis is None and all(other.same(grid) for other in grids):
                number = self.builder.tensor(value.name, [shape[a] for a in layout], np.dtype(np.int8), grid)
                for reader in readers:
                    held = Value(number, shape, layout, grid, np.dtype(np.int8))
                    self.graph.held[reader.output[0]] = held
                    self.done.add(id(reader))
                return Port(value.name, layout, float(grid.scale[0]), int(grid.zero_point[0])), number
        number = self.builder.tensor(value.name, [shape[a] for a in layout], kind)
        self.graph.held[value.name] = Value(number, shape, layout, None, kind)
        return Port(value.name, layout), number

    def _output(self, name: str) -> tuple[Port, int]:
        held = self.graph.held[name]
        if isinstance(held, Reshaped):
            held = self.builder.reshaped(held.source, held.shape, name)
        if isinstance(held, Constant):
            raise CheckError("handoff-failed", f"litert: the output {name!r} is constant")
        held = self.builder.laid(held, boundary_layout(len(held.shape)))
        grid = held.grid
        if grid is None:
            return Port(name, held.layout), held.number
        return Port(name, held.layout, float(grid.scale[0]), int(grid.zero_point[0])), held.number

    def _node(self, node: onnx.NodeProto) -> None:
        """Write one node, or note why not; nodes that read a refused one's result are not noted again."""
        name, start = node.name or node.output[0], len(self.builder.operators)
        try:
            if is_quantizer(node):
                self._quantizer(node)
                return
            lowering = LOWERINGS.get(node.op_type)
            if lowering is None or node.domain not in ("", "ai.onnx"):
                raise RefusedError("LiteRT has no such operator that onnxqat writes")
            site = Site(node, self.graph, self.builder)
            lowering(site)
        except RefusedError as error:
            if not any(isinstance(o, str) and o in self._unknown(node) for o in node.input):
                self.refused.append(f"{node.op_type} {name!r}: {error}")
            return
        self._note(name, node, start)
        for other in site.absorbed:
            self.done.add(id(other))
            if not is_quantizer(other):
                last = self.written[-1]
                self.written.append(Written(other.name or other.output[0], last.kind, last.operators, last.tensors))

    def _unknown(self, node: onnx.NodeProto) -> set[str]:
        """Inputs whose maker was refused itself."""
        return {name for name in node.input if name and name not in self.graph.held} if self.refused else set()

    def _quantizer(self, node: onnx.NodeProto) -> None:
        """Turn QuantizeLinear and DequantizeLinear into the quantization of a tensor; LiteRT has no pairs."""
        held = self.graph.held.get(node.input[0])
        if held is None:
            raise RefusedError(f"its input {node.input[0]!r} could not be written")
        grid = self.graph.grid(node)
        if node.op_type == QUANTIZE:
            if isinstance(held, Constant):
                self.graph.held[node.output[0]] = Constant(_codes(held.values, grid), None, held.name)
                return
            if grid.axis is not None:
                raise RefusedError("activations have one scale in LiteRT")
            if isinstance(held, Reshaped) and held.grid is not None and held.grid.same(grid):
                self.graph.held[node.output[0]] = held
                return
            if isinstance(held, Reshaped):
                held = self.builder.reshaped(held.source, held.shape, held.name)
            self.graph.held[node.output[0]] = self.builder.quantized(held, grid, node.input[0])
        elif isinstance(held, Constant):
            self.graph.held[node.output[0]] = Constant(held.array, grid, held.name)
        elif held.grid is None or not held.grid.same(grid):
            raise RefusedError("it reads codes by another grid than that which they were written on")
        else:
            self.graph.held[node.output[0]] = held

    def _note(self, name: str, node: onnx.NodeProto, start: int) -> None:
        """Note what was written for `node` since operator number `start`."""
        made = self.builder.operators[start:]
        own = [operator for operator in made if operator.code not in _AROUND]
        tensors = tuple(self.builder.tensors[number].name for operator in made for number in operator.outputs)
        data = [self._data_type(operator.inputs) for operator in own]
        kind: Kind
        if own:
            kind = "integer" if all(kind == np.int8 for kind in data) else "float"
        else:
            held = self.graph.held.get(node.output[0])
            kind = "moved" if held is None or held.grid is not None else "float"
        self.written.append(Written(name, kind, tuple(operator.code for operator in made), tensors))

    def _data_type(self, inputs: tuple[int, ...]) -> np.dtype[Any]:
        """Type of what an operator computes on; TRANSPOSE_CONV has a shape first."""
        kinds = [self.builder.tensors[number].dtype for number in inputs]
        return next((kind for kind in kinds if kind != np.int32), kinds[0])


def _codes(values: Array, grid: Grid) -> Array:
    """The int8 codes of constants that the file computes, as of a weight from ConstantOfShape."""
    along = [1] * values.ndim
    if grid.axis is not None:
        along[grid.axis] = -1
    single = grid.axis is None
    scale = grid.scale[0] if single else grid.scale.reshape(along)
    zero_point = grid.zero_point[0] if single else grid.zero_point.reshape(along)
    result: Array = np.clip(np.round(values.astype(np.float32) / scale) + zero_point, LOWEST, HIGHEST).astype(np.int8)
    return result
