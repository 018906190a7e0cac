"""The train form of a QDQ file: float weights in front of their quantizers."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.errors import ModelError
from onnxqat.graph import build, notes, qdq, query, walk
from onnxqat.graph.qdq import QUANT_MAX, QUANT_MIN
from onnxqat.graph.quantizer import Quantizer
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, drop_unused, scope_map
from onnxqat.passes._forms import TENSOR, dequantized, float_name, is_float32
from onnxqat.types import STORAGE, QParams, QType

CLIP_OPSET = 12
UNCLIPPED = frozenset({"int2", "uint2", "int4", "uint4"})


class TrainForm(Pass):
    """Stored integers become float constants that are quantized in the graph, so that they can be trained.

    1. ``<constant>_quantized`` -> DequantizeLinear becomes a float constant of the dequantized values, under the name
       that it had, -> QuantizeLinear (-> Clip) -> the same DequantizeLinear. Several DequantizeLinear of one constant
       with equal parameters share the float constant.
    2. Left alone, with the reason: int32 codes (biases), which QuantizeLinear does not write; constants whose scale
       is not float32; values that would not return to their codes; narrow grids in 2- or 4-bit types, for which
       there is no Clip.

    Tolerance: none; the values lie on the grid, so quantizing them again gives the same codes. ::

        d = DequantizeLinear(w_quantized, s, z)   y = Conv(x, d)
        w_quantized = QuantizeLinear(w, s, z)   d = DequantizeLinear(w_quantized, s, z)   y = Conv(x, d)
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Make float constants; see the class."""
        log, scopes = Log(), scope_map(model)
        made: dict[int, list[tuple[QParams, ir.Value]]] = {}
        for quantizer in qdq.quantizers(model, every=True):
            if not quantizer.stored:
                continue
            node = quantizer.dequantize[0]
            reason = _reason(quantizer)
            if reason is not None:
                log.left(reason, node)
                continue
            qparams = _grid(node, quantizer.qparams)
            if qparams.qtype.needs_clip and query.opset(model) < CLIP_OPSET:
                raise ModelError("pass-precondition", f"a narrow grid needs opset {CLIP_OPSET}", hint="run raise-opset")
            known = made.setdefault(id(quantizer.input), [])
            codes = next((value for other, value in known if other.same(qparams)), None)
            if codes is None:
                codes = self._quantize(quantizer, qparams, scopes, context.names)
                known.append((qparams, codes))
            stored = node.inputs[0]
            node.replace_input_with(0, codes)
            for key in (TENSOR, QUANT_MIN, QUANT_MAX):
                node.metadata_props.pop(key, None)
            if stored is not None and not query.reads(stored):
                self._hand_over(stored, known)
            log.did("stored integers became float constants behind quantizers", node)
        return log.result()

    def _quantize(
        self, quantizer: Quantizer, qparams: QParams, scopes: dict[int, walk.Scope], names: build.Names
    ) -> ir.Value:
        """Give a stored weight float values and a QuantizeLinear, and return the codes that its readers take."""
        node = quantizer.dequantize[0]
        scope = scopes[id(node.graph)]
        values = dequantized(quantizer)
        assert values is not None
        source = build.constant(scope, names.fresh(float_name(quantizer)), values, before=node)
        zero_point = query.input_at(node, 2)
        if zero_point is None:
            dtype = ir.DataType[qparams.qtype.storage.upper()]
            name = names.fresh(f"{source.name}_zero_point")
            zero_point = build.constant(scope, name, qparams.zero_point, dtype, before=node)
        scale = node.inputs[1]
        assert scale is not None
        stamp = {build.CREATED_BY: self.name}
        parameters = qdq.Parameters(scale, zero_point)
        output = qdq.insert_pair(source, parameters, qparams, names, stamp, scope=scope, before=node)
        spare = output.producer()
        codes = None if spare is None else spare.inputs[0]
        assert spare is not None
        assert codes is not None
        scope.remove(spare, safe=True)
        return codes

    @staticmethod
    def _hand_over(stored: ir.Value, made: list[tuple[QParams, ir.Value]]) -> None:
        """The quantized tensor takes the name of the stored one, which goes."""
        if stored.is_graph_output() or stored.is_graph_input():
            return
        drop_unused(stored)
        quantize = made[0][1].producer()
        while quantize is not None and not qdq.is_quantize(quantize):
            source = quantize.inputs[0]
            quantize = query.producer(source)
        if quantize is not None:
            quantize.outputs[0].name = stored.name


def _reason(quantizer: Quantizer) -> str | None:
    if quantizer.qparams.qtype.storage == "int32":
        return "QuantizeLinear does not write int32"
    if not is_float32(quantizer):
        return "the scale is not float32"
    codes, values = query.constant_array(quantizer.input), dequantized(quantizer)
    if codes is None or values is None:
        return "the codes are not constant"
    grid = _grid(quantizer.dequantize[0], quantizer.qparams)
    if grid.qtype.needs_clip and grid.qtype.storage in UNCLIPPED:
        return f"Clip, which a narrow grid needs, has no type {grid.qtype.storage}"
    again = numerics.quantize(values, grid)
    if not np.array_equal(again, np.asarray(codes).astype(again.dtype)):
        return "quantizing the values again would give other codes"
    return None


def _grid(node: ir.Node, qparams: QParams) -> QParams:
    """The grid that the deploy form noted, else the whole one of the storage type."""
    if qparams.qtype.is_float:
        return qparams
    low, high, _ = STORAGE[qparams.qtype.storage]
    return notes.grid(node, dataclasses.replace(qparams, qtype=QType(qparams.qtype.storage, low, high)))
