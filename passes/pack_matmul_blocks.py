"""Layers on stored weights of 4 and 8 bits as MatMulNBits of onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.graph import build, qdq, query, walk
from onnxqat.graph.quantizer import Quantizer
from onnxqat.passes import _opset
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, drop_unused, scope_map
from onnxqat.passes._setting import Setting
from onnxqat.types import QParams

DOMAIN, VERSION = "com.microsoft", 1

SMALLEST_BLOCK = 16
"""Elements of a block that the operator takes at least; their number is a power of two (onnxruntime, MatMulNBits)."""

WIDEST_BLOCK = 128
"""Elements of the blocks that repeat the scale of a channel: larger ones save next to nothing."""

BITS = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8}

Array = npt.NDArray[Any]


class PackMatmulBlocks(Pass):
    """A product with a stored weight becomes ``com.microsoft.MatMulNBits``, which keeps the codes in memory as they are.

    1. Stored integers of 4 or 8 bits -> DequantizeLinear -> input B of a MatMul, or of a Gemm without transA, alpha and beta:
       the codes go into bytes, low bits first, a row for each output, and the bias of the Gemm along. Zero points are
       written where one is not the middle of the codes.
    2. Blocks along the axis that is summed over, in sizes from 16 that are a power of two. A weight with one scale for each
       channel, or one in all, gets blocks that repeat it.
    3. ``accuracy_level`` is written as asked for: 1 computes in float32, 4 rounds the data to int8 in blocks, as onnxruntime
       does by itself with a DequantizeLinear in its default session.
    4. Left alone, with the reason: weights that have other readers or another form, and data of one axis.

    Tolerance: float32 sums in another order. ::

        d = DequantizeLinear <axis = 0, block_size = 32> (w, s)   y = MatMul (x, d)
        y = com.microsoft.MatMulNBits <K = 64, N = 8, bits = 4, block_size = 32, accuracy_level = 1> (x, w_packed, s_packed)

    Args:
        accuracy_level: 0 to 4; 0 leaves the choice to onnxruntime.
    """

    def __init__(self, accuracy_level: int = 1) -> None:
        self.accuracy_level = accuracy_level

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Pack for the deploy form of a table that states `matmul_nbits`."""
        level = setting.table.matmul_nbits
        return None if level is None or not setting.deploys else cls(level)

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Pack; see the class."""
        log, scopes = Log(), scope_map(model)
        for quantizer in qdq.quantizers(model, every=True):
            layers = quantizer.readers
            if not quantizer.stored or quantizer.qparams.qtype.storage not in BITS or not any(map(_is_layer, layers)):
                continue
            reason = _refusal(quantizer, layers)
            if reason:
                log.left(f"weights stay in front of DequantizeLinear: {reason}", *layers)
                continue
            scope = scopes[id(quantizer.dequantize[0].graph)]
            packed = _Packed.of(quantizer, layers[0])
            values = packed.values(scope, str(quantizer.input.name), context.names, quantizer.dequantize[0])
            for node in layers:
                self._replace(scope, node, packed, values)
            for node in quantizer.dequantize:
                inputs = list(node.inputs)
                scope.remove(node, safe=True)
                for value in inputs:
                    drop_unused(value)
            log.did(f"layers became MatMulNBits of {packed.bits} bits, accuracy_level {self.accuracy_level}", *layers)
        if log.changed:
            model.opset_imports.setdefault(DOMAIN, VERSION)
            _opset.lower(model)
        return log.result()

    def _replace(self, scope: walk.Scope, node: ir.Node, packed: _Packed, values: list[ir.Value | None]) -> None:
        """Replace the MatMul by onnxruntime's MatMulNBits over the packed codes; name and metadata stay."""
        bias = query.input_at(node, 2)
        inputs = [node.inputs[0], *values, None, bias]
        while inputs[-1] is None:
            inputs.pop()
        output = node.outputs[0]
        attributes = {
            "K": packed.codes.shape[1],
            "N": packed.codes.shape[0],
            "bits": packed.bits,
            "block_size": packed.block,
            "accuracy_level": self.accuracy_level,
        }
        name = str(output.name)
        output.name = None
        made = build.node(
            "MatMulNBits",
            inputs,
            [name],
            attributes,
            domain=DOMAIN,
            dtype=output.dtype,
            shape=output.shape,
            name=node.name,
            stamp={**node.metadata_props, build.CREATED_BY: self.name},
        )
        scope.insert_before(node, made)
        output.replace_all_uses_with(made.outputs[0], replace_graph_outputs=True)
        scope.remove(node, safe=True)


class _Packed:
    """A weight as the operator keeps it.

    Attributes:
        codes: int64 (N, K), at least 0.
        scales: float32 (N, blocks).
        zeros: int64 (N, blocks), the codes of 0.
        bits: 4 or 8.
        block: elements of a block.
    """

    def __init__(self, codes: Array, scales: Array, zeros: Array, bits: int, block: int) -> None:
        self.codes, self.scales, self.zeros, self.bits, self.block = codes, scales, zeros, bits, block

    @classmethod
    def of(cls, quantizer: Quantizer, layer: ir.Node) -> _Packed:
        """The weight of `quantizer` as `layer` reads it."""
        qparams, held = quantizer.qparams, query.constant_array(quantizer.input)
        assert held is not None
        bits, summed = BITS[qparams.qtype.storage], _summed_axis(layer)
        shift = 2 ** (bits - 1) if qparams.qtype.storage.startswith("int") else 0
        inputs = held.shape[summed]
        block = qparams.block_size or min(max(_power_of_two(inputs), SMALLEST_BLOCK), WIDEST_BLOCK)
        scales, zeros = (
            _of_blocks(part, qparams, held.shape, summed, block) for part in (qparams.scale, qparams.zero_point)
        )
        rows = np.moveaxis(held.astype(np.int64), summed, 1) + shift
        return cls(rows, scales, zeros + shift, bits, block)

    def values(self, scope: walk.Scope, weight: str, names: build.Names, before: ir.Node) -> list[ir.Value | None]:
        """New constants for the inputs behind the data: codes, scales, and zero points where they say something."""
        rows, inputs = self.codes.shape
        blocks = self.scales.shape[1]
        filled = np.repeat(self.zeros, self.block, axis=1)  # what fills the last block up stands for 0
        filled[:, :inputs] = self.codes
        codes = _in_bytes(filled, self.bits).reshape(rows, blocks, -1)
        parts: list[tuple[str, Array] | None] = [("packed", codes), ("scales", self.scales.reshape(-1)), None]
        if (self.zeros != 2 ** (self.bits - 1)).any():
            parts[2] = ("zero_points", _in_bytes(self.zeros, self.bits).reshape(-1))
        return [
            None if part is None else build.constant(scope, names.fresh(f"{weight}_{part[0]}"), part[1], before=before)
            for part in parts
        ]


def _of_blocks(part: Array, qparams: QParams, shape: tuple[int, ...], summed: int, block: int) -> Array:
    """A scale or zero point for each block of `block` along the `summed` axis, (N, blocks)."""
    each = np.broadcast_to(numerics.spread(part, qparams, shape), shape)
    return np.ascontiguousarray(np.moveaxis(each, summed, 1)[:, ::block])


def _in_bytes(codes: Array, bits: int) -> npt.NDArray[np.uint8]:
    """Rows of `codes` as bytes, low bits first, filled up with 0."""
    each = 8 // bits
    filled = np.pad(codes, ((0, 0), (0, -codes.shape[1] % each))).astype(np.uint8)
    shifted = filled.reshape(len(codes), -1, each) << np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray(np.bitwise_or.reduce(shifted, axis=-1).astype(np.uint8))


def _power_of_two(number: int) -> int:
    """The smallest power of two that is no less than `number`."""
    return 1 << (number - 1).bit_length()


def _is_layer(node: ir.Node) -> bool:
    return node.op_type in ("MatMul", "Gemm") and not node.domain


def _summed_axis(layer: ir.Node) -> int:
    return 1 if layer.op_type == "Gemm" and query.attribute(layer, "transB", 0) else 0


def _refusal(quantizer: Quantizer, layers: list[ir.Node]) -> str:
    """The reason why the weight of `layers` cannot be packed; empty if there is none."""
    weight, qparams = query.constant_array(quantizer.input), quantizer.qparams
    if weight is None or weight.ndim != 2:
        return "they are no constant with two axes"
    if not all(_is_layer(n) and list(n.inputs).index(v) == 1 for v in quantizer.outputs for n in v.consumers()):
        return "something else reads them too"
    if any(value.is_graph_output() for value in quantizer.outputs) or len({*map(_summed_axis, layers)}) > 1:
        return "they are read in two ways"
    if any(reason := _refusal_of_layer(node, weight.shape[1 - _summed_axis(node)]) for node in layers):
        return reason
    if qparams.axis is not None and (qparams.axis == _summed_axis(layers[0])) != bool(qparams.block_size):
        return "scales lie along another axis"
    block = qparams.block_size or SMALLEST_BLOCK
    if block < SMALLEST_BLOCK or block & (block - 1):
        return f"MatMulNBits has no blocks of {block}: it takes powers of two from {SMALLEST_BLOCK} on"
    return ""


def _refusal_of_layer(node: ir.Node, outputs: int) -> str:
    if query.rank(node.inputs[0]) in (None, 1):
        return "the data have one axis, or an unknown number of them"
    if node.op_type == "MatMul":
        return ""
    if any(query.attribute(node, *default) != default[1] for default in (("transA", 0), ("alpha", 1.0), ("beta", 1.0))):
        return "the Gemm has transA, alpha or beta"
    bias = query.input_at(node, 2)
    return "" if bias is None or query.static_shape(bias) == (outputs,) else "the bias has no value for each output"
