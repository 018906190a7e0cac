"""The deploy form of a QDQ file: integer weights in front of DequantizeLinear."""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.graph import build, edit, omitted, qdq, query, walk
from onnxqat.graph.qdq import QUANT_MAX, QUANT_MIN
from onnxqat.graph.quantizer import Quantizer
from onnxqat.passes import _opset
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, drop_unused, remove_with_constants, scope_map
from onnxqat.passes._forms import TENSOR, dequantized, float_name, is_float32
from onnxqat.passes._setting import Setting

PREFIX = "onnxqat."


class DeployForm(Pass):
    """Constants are stored as the integers that they are quantized to; opset and IR version become the lowest.

    1. float constant -> QuantizeLinear (-> Clip) -> DequantizeLinear becomes ``<constant>_quantized``, in the storage
       type of the quantizer (int4 and int2 are packed by the file format), and the same DequantizeLinear, which notes
       the constant's name and the ends of a narrow grid. A float constant that others read stays for them.
    2. Biases stored as int32 stay, or become float constants on the same grid with ``bias="float"``.
    3. The opset is lowered as far as every node keeps its schema version (Q/DQ as their types allow), the IR version
       as far as opset and types allow; neither is raised. Models with functions keep their opset.
    4. With ``strip_metadata``, the notes of onnxqat on nodes go. The train form can still be made from the file, but
       a grid that is narrower than its type becomes the type's full one.
    5. Inputs that are omitted at the end of a node are not written as empty names: OpenVINO refuses those of a Gemm.
    6. Left alone: quantizers of activations, and constants whose float type is not float32.

    Tolerance: none where the weights lie anywhere: QuantizeLinear is computed once instead of in each run. ::

        q = QuantizeLinear(w, s, z)   d = DequantizeLinear(q, s, z)   y = Conv(x, d)
        d = DequantizeLinear(w_quantized, s, z)   y = Conv(x, d)

    Args:
        bias: ``"keep"`` or ``"float"``.
        strip_metadata: remove what onnxqat noted on nodes.
    """

    def __init__(self, bias: Literal["keep", "float"] = "keep", *, strip_metadata: bool = False) -> None:
        self.bias = bias
        self.strip_metadata = strip_metadata

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Keep biases in float where the table does."""
        floats = any(row.derive is not None and row.dtype == "float" for row in setting.table.types.values())
        return cls(bias="float" if floats else "keep")

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Store integers; see the class."""
        log, scopes = Log(), scope_map(model)
        for quantizer in qdq.quantizers(model, every=True):
            if not is_float32(quantizer):
                log.left("the quantized constant or its scale is not float32", quantizer.nodes[0])
            elif not quantizer.stored and query.constant_tensor(quantizer.input) is not None:
                label = query.label(quantizer.nodes[0])
                self._store(quantizer, scopes, context.names)
                log.did("constants are stored as integers", label)
            elif self.bias == "float" and quantizer.stored and quantizer.role == "bias":
                label = query.label(quantizer.nodes[0])
                if self._release(quantizer, scopes, context.names):
                    log.did("int32 biases are stored as float", label)
        if self.strip_metadata:
            for node in walk.nodes(model):
                for key in [k for k in node.metadata_props if k.startswith(PREFIX)]:
                    del node.metadata_props[key]
                    log.did("what onnxqat noted on nodes was removed")
        for node in walk.nodes(model):
            if omitted.cut(node):
                log.did("inputs that are omitted at the end have no empty name", node)
        if _opset.lower(model):
            log.did(f"opset is now {query.opset(model)}, IR version {model.ir_version}")
        return log.result()

    def _store(self, quantizer: Quantizer, scopes: dict[int, walk.Scope], names: build.Names) -> None:
        """Store the codes in place of weight and QuantizeLinear; metadata keep its name and the codes' ends."""
        quantize, qparams = quantizer.quantize, quantizer.qparams
        assert quantize is not None
        source = quantizer.input
        values = np.asarray(query.constant_array(source), np.float32)
        dtype = ir.DataType[qparams.qtype.storage.upper()]
        scope = scopes[id(quantize.graph)]
        codes = quantize.outputs[0]
        name, codes.name = str(codes.name), None
        stored = build.constant(scope, name, numerics.quantize(values, qparams), dtype, before=quantize)
        for node in quantizer.dequantize:
            node.replace_input_with(0, stored)
            node.metadata_props[TENSOR] = str(source.name)
            if qparams.qtype.needs_clip:
                node.metadata_props[QUANT_MIN] = str(qparams.qtype.quant_min)
                node.metadata_props[QUANT_MAX] = str(qparams.qtype.quant_max)
        for spent in (quantizer.clip, quantize):
            if spent is not None:
                parameters = list(spent.inputs[1:])
                walk.scope_of(spent).remove(spent, safe=True)
                for value in parameters:
                    drop_unused(value)
        drop_unused(source)

    @staticmethod
    def _release(quantizer: Quantizer, scopes: dict[int, walk.Scope], names: build.Names) -> bool:
        """Put float values in the place of a quantized bias; False where these are not known or leave the graph."""
        node = quantizer.dequantize[0]
        values = dequantized(quantizer)
        if values is None or node.outputs[0].is_graph_output():
            return False
        name = float_name(quantizer)
        name = names.fresh(name) if name != node.outputs[0].name else name
        node.outputs[0].name = None
        constant = build.constant(scopes[id(node.graph)], name, values, before=node)
        edit.rewire(node.outputs[0].uses(), constant)
        remove_with_constants(node)
        return True
