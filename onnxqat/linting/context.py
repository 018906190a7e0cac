"""A QDQ file as the rules see it: its quantizers, and its Q and DQ nodes whether or not they make up quantizers."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxqat.backends.schema import Backend
from onnxqat.errors import QatError
from onnxqat.graph import data_movement, folded_batchnorm, qdq, query, walk
from onnxqat.graph.quantizer import Quantizer
from onnxqat.linting.float_view import FloatView, plain_view
from onnxqat.linting.target import Target, target_of
from onnxqat.ops import operators as ops
from onnxqat.passes._forms import dequantized, float_name


class LintContext:
    """One model under the lint, with what several rules ask for.

    Args:
        model: the lint's own copy; rules only read it, fixes change it.
        table: the backend whose rules are applied, None without.
    """

    def __init__(self, model: ir.Model, table: Backend | None = None) -> None:
        self.model, self.table = model, table
        self.scopes = list(walk.scopes(model))
        self.nodes = [node for scope in self.scopes for node in scope]
        self._opsets = {id(node): query.opset(model, scope) for scope in self.scopes for node in scope}
        self.ends = [node for node in self.nodes if qdq.is_qdq(node)]
        self.quantizers = qdq.quantizers(model, every=True)
        self._by_output = qdq.by_output(self.quantizers)
        self._carried = data_movement.carried(self.quantizers)
        self._by_input: dict[int, list[Quantizer]] = {}
        self._by_node: dict[int, Quantizer] = {}
        for quantizer in self.quantizers:
            if not quantizer.stored:
                self._by_input.setdefault(id(quantizer.input), []).append(quantizer)
            self._by_node.update({id(node): quantizer for node in quantizer.nodes})

    @property
    def is_quantized(self) -> bool:
        """Check whether the file has any QuantizeLinear or DequantizeLinear."""
        return bool(self.ends)

    def opset(self, node: ir.Node) -> int:
        """Version of ai.onnx that holds for `node`."""
        return self._opsets[id(node)]

    def reading(self, node: ir.Node, index: int) -> Quantizer | None:
        """The quantizer whose result, moved or not, `node` reads as input `index`."""
        value = query.input_at(node, index)
        return None if value is None else self._carried.get(id(value))

    def making(self, value: ir.Value | None) -> Quantizer | None:
        """The quantizer that `value` comes out of."""
        return None if value is None else self._by_output.get(id(value))

    def on(self, value: ir.Value) -> list[Quantizer]:
        """The quantizers that read `value`."""
        return self._by_input.get(id(value), [])

    def of_node(self, node: ir.Node) -> Quantizer | None:
        """The quantizer that a Q, Clip or DQ node is part of."""
        return self._by_node.get(id(node))

    def layers(self, *op_types: str) -> Iterator[ir.Node]:
        """Nodes of ONNX's own domain with one of these operators."""
        return (n for n in self.nodes if n.op_type in op_types and n.domain in ("", "ai.onnx"))

    @functools.cached_property
    def _plain_or_error(self) -> FloatView | QatError:
        try:
            return plain_view(self.model, self.table)
        except QatError as error:
            return error

    @property
    def plain(self) -> FloatView | None:
        """The model without its quantizers, prepared where it had none; None where the file is too broken for that."""
        found = self._plain_or_error
        return found if isinstance(found, FloatView) else None

    @property
    def refusal(self) -> QatError | None:
        """Why there is no :attr:`plain`."""
        found = self._plain_or_error
        return found if isinstance(found, QatError) else None

    def named(self, tensor: str) -> list[Quantizer]:
        """The quantizers of the float tensor of this name, or whose result has it: a graph output's pair takes it."""
        return self._by_name.get(tensor, [])

    @functools.cached_property
    def _by_name(self) -> dict[str, list[Quantizer]]:
        found: dict[str, list[Quantizer]] = {}
        for quantizer in self.quantizers:
            names = {float_name(quantizer), *(str(v.name) for v in quantizer.outputs)}
            if not quantizer.stored:
                names.add(str(quantizer.input.name))
            for name in names:
                found.setdefault(name, []).append(quantizer)
        return found

    def maker(self, tensor: str) -> ir.Node | None:
        """The first node that makes a tensor of this name; None where none does."""
        return self._makers.get(tensor)

    @functools.cached_property
    def _makers(self) -> dict[str, ir.Node]:
        return {str(v.name): node for node in reversed(self.nodes) for v in node.outputs}

    @functools.cached_property
    def target(self) -> Target | None:
        """Plan of the backend's table for this model; None without a table or where it cannot be planned."""
        if self.table is None or self.plain is None:
            return None
        return target_of(self.plain, self.table)


def scale(node: ir.Node) -> np.ndarray | None:
    """The constant scale of a Q or DQ node, as float32."""
    found = query.constant_array(query.input_at(node, 1))
    return None if found is None else np.asarray(found, np.float32)


def zero_point(node: ir.Node) -> np.ndarray | None:
    """The constant zero point of a Q or DQ node, as int64; zeros where it is omitted, None where it is computed."""
    if len(node.inputs) < 3 or node.inputs[2] is None:
        shape = scale(node)
        return None if shape is None else np.zeros(shape.shape, np.int64)
    found = query.constant_array(node.inputs[2])
    return None if found is None else np.asarray(found).astype(np.int64)


def block_size(node: ir.Node) -> int:
    """Return the attribute ``block_size``; 0 without blocks."""
    return int(query.attribute(node, "block_size", 0))


def axis(node: ir.Node) -> int:
    """Return the attribute ``axis`` as it is written; 1, ONNX's default, where it is not set."""
    return int(query.attribute(node, "axis", 1))


def storage(node: ir.Node) -> str:
    """ONNX type of the codes of a Q or DQ node, in lower case; empty where it is unknown."""
    if qdq.is_dequantize(node):
        source = node.inputs[0]
        return "" if source is None or source.dtype is None else source.dtype.name.lower()
    zero = query.input_at(node, 2)
    if zero is not None:
        return "" if zero.dtype is None else zero.dtype.name.lower()
    stated = int(query.attribute(node, "output_dtype", 0))
    return ir.DataType(stated).name.lower() if stated and stated in set(ir.DataType) else "uint8"


def same_grid(first: Quantizer, other: Quantizer) -> bool:
    """Check whether two quantizers have the same scale, zero point, grid and block size, whatever their axis."""
    a, b = first.qparams, other.qparams
    return (
        a.qtype == b.qtype
        and np.array_equal(a.scale, b.scale)
        and np.array_equal(a.zero_point, b.zero_point)
        and a.block_size == b.block_size
    )


def same_width(first: Quantizer, other: Quantizer) -> bool:
    """Check whether two quantizers have the same grid: storage type, smallest and largest code."""
    return first.qparams.qtype == other.qparams.qtype


def is_integer(quantizer: Quantizer) -> bool:
    """Check whether the codes are integers with one scale per tensor or channel."""
    return quantizer.qparams.scheme.is_integer


def constant_values(quantizer: Quantizer) -> np.ndarray | None:
    """Float values of a quantized constant, before quantization where the file has them; None for an activation."""
    if quantizer.stored:
        return dequantized(quantizer) if quantizer.clip is None else None
    found = folded_batchnorm.held(quantizer)
    return None if found is None else np.asarray(found, np.float32)


def tensor_of(quantizer: Quantizer) -> str:
    """Name of the float tensor; for stored integers that of the constant that they were made from."""
    return float_name(quantizer) if quantizer.stored else quantizer.tensor


def per_channel(array: np.ndarray, channel_axis: int | None) -> np.ndarray:
    """Return `array` with one row per channel; a single row without an axis."""
    if channel_axis is None or not array.ndim:
        return array.reshape(1, -1)
    return np.moveaxis(array, channel_axis, 0).reshape(array.shape[channel_axis], -1)


def output_axis(node: ir.Node, weight: ir.Value | None) -> int | None:
    """Axis of the output channels in the weight (input 1) of a Conv, ConvTranspose, Gemm or MatMul; None if unknown."""
    rank = query.rank(weight)
    if not rank:
        return None
    if node.op_type == "MatMul":
        return rank - 1 if rank > 1 else None
    row = ops.of(node)
    found = row.weight_axis if row is not None else None
    if found == "gemm":
        return 0 if query.attribute(node, "transB", 0) else 1
    return found
