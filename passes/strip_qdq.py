"""Quantizers removed: the float graph comes back."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import build, edit, qdq, walk
from onnxqat.graph.quantizer import Quantizer
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, drop_unused, scope_map
from onnxqat.passes._forms import dequantized, float_name, is_float32

PREFIX = "onnxqat."


class StripQdq(Pass):
    """Every quantizer goes; its readers read the float tensor.

    1. float tensor -> QuantizeLinear (-> Clip) -> DequantizeLinear: the readers read the float tensor. A graph output
       keeps its name: the float tensor, which was renamed when its output got the quantizer, takes it back.
    2. Stored integers -> DequantizeLinear, biases of int32 too: a float constant of the dequantized values, under the
       name that the float constant had, or under the name of the dequantized tensor.
    3. Constants that nothing reads any more go, and what onnxqat wrote into the model's metadata.
    4. Left alone, with the reason: Q/DQ that are no quantizers (dynamic or blocked scales, float8), and those whose
       float type is not float32.

    Tolerance: none but the quantization that is removed. ::

        q = QuantizeLinear(x, s, z)   d = DequantizeLinear(q, s, z)   y = Relu(d)
        y = Relu(x)
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Strip; see the class."""
        log = Log()
        scopes = scope_map(model)
        quantizers = qdq.quantizers(model, every=True)
        edit.rewire_wide(self._sources(quantizers))
        for quantizer in quantizers:
            label = quantizer.nodes[0]
            if quantizer.stored and not is_float32(quantizer):
                continue
            parameters = [v for n in quantizer.nodes for v in n.inputs[1:]]
            if quantizer.stored:
                self._release(quantizer, scopes, context.names)
            else:
                self._collapse(quantizer)
            for value in parameters:
                drop_unused(value)
            log.did("quantizers were removed", label)
        for node in walk.nodes(model):
            if qdq.is_qdq(node):
                log.left("this Q/DQ node is no quantizer with constant parameters", node)
        self._forget(model, log)
        return log.result()

    @staticmethod
    def _sources(quantizers: list[Quantizer]) -> dict[ir.Value, ir.Value]:
        """The float tensor behind each result of a quantizer, through quantizers in a row."""
        found: dict[ir.Value, ir.Value] = {}
        for quantizer in quantizers:
            if quantizer.quantize is not None and not quantizer.stored:
                found |= dict.fromkeys(quantizer.outputs, found.get(quantizer.input, quantizer.input))
        return found

    def _collapse(self, quantizer: Quantizer) -> None:
        quantize = quantizer.quantize
        assert quantize is not None
        source = quantize.inputs[0]
        assert source is not None
        for node in quantizer.dequantize:
            self._bypass(node, source)
        for spent in (quantizer.clip, quantize):
            if spent is not None:
                walk.scope_of(spent).remove(spent, safe=True)

    def _release(self, quantizer: Quantizer, scopes: dict[int, walk.Scope], names: build.Names) -> None:
        node = quantizer.dequantize[0]
        values = dequantized(quantizer)
        assert values is not None
        stored = node.inputs[0]
        name = float_name(quantizer)
        output = node.outputs[0]
        if name == output.name and not output.is_graph_output():
            output.name = None
        else:
            name = names.fresh(name)
        scope = scopes[id(node.graph)]
        constant = build.constant(scope, name, values, ir.DataType.FLOAT, before=node)
        self._bypass(node, constant)
        drop_unused(stored)

    def _bypass(self, node: ir.Node, source: ir.Value) -> None:
        identity = edit.bypass(node, source)
        if identity is not None:
            identity.metadata_props[build.CREATED_BY] = self.name

    @staticmethod
    def _forget(model: ir.Model, log: Log) -> None:
        keys = [key for key in model.metadata_props if key.startswith(PREFIX)]
        for key in keys:
            del model.metadata_props[key]
            log.did("what onnxqat noted in the model's metadata was removed")
