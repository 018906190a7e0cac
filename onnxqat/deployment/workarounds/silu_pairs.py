"""The pair inside a SiLU that HTP and RKNN ask for and do not carry out."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat.deployment.workarounds import pair
from onnxqat.graph import build, query, walk
from onnxqat.graph.qdq import QUANTIZE
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log

STEP = 2.0**-8  # a Sigmoid lies between 0 and 1
NAME = "onnxqat_gate"


class SiluPairs(Pass):
    """The Sigmoid of each SiLU between Q/DQ gets a pair of its own, with steps of 1/256.

    HTP makes one table of ``x * sigmoid(x)``, whatever the pair behind the Sigmoid is, but computes both in float where
    there is none (onnxruntime-qnn 2.7); RKNN makes one exSwish of it (RKNN-Toolkit2 2.5.0). So they compute what the
    model said before.

    Left alone: a Sigmoid that something else reads too, or whose product is of another tensor or not quantized; types
    other than float32.

    Tolerance: a step of the pair behind the product, and 1/512 of x. ::

        g = Sigmoid(x)  y = Mul(x, g)
        g = Sigmoid(x)  q = QuantizeLinear(g, 1 / 256, 0)  d = DequantizeLinear(q, 1 / 256, 0)  y = Mul(x, d)
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Insert the pairs; see the class."""
        log = Log()
        for scope in walk.scopes(model):
            parameters: list[ir.Value | None] = []
            for node in list(scope):
                product = _product(node)
                if product is None:
                    continue
                gate, source = node.outputs[0], pair.dequantize_of(node.inputs[0])
                assert source is not None
                if not parameters:
                    parameters = [
                        build.constant(scope, context.names.fresh(f"scale_{NAME}"), np.asarray(STEP, np.float32)),
                        build.constant(scope, context.names.fresh(f"zero_point_{NAME}"), np.asarray(0, np.uint8)),
                    ]
                name = f"{gate.name}_{NAME}"
                paired = pair.insert(scope, product, gate, source, context.names, name, parameters)
                product.replace_input_with(list(product.inputs).index(gate), paired)
                log.did("a Sigmoid inside a SiLU got a pair", node)
        return log.result()


def _product(node: ir.Node) -> ir.Node | None:
    """The Mul that makes a SiLU of the Sigmoid `node`; None where there is none, or the pair is not wanted."""
    if node.op_type != "Sigmoid" or node.domain or pair.dequantize_of(node.inputs[0]) is None:
        return None
    gate = node.outputs[0]
    if gate.is_graph_output() or query.reads(gate) != 1 or gate.dtype not in (None, ir.DataType.FLOAT):
        return None
    ((product, _),) = gate.uses()
    if product.op_type != "Mul" or product.domain or node.inputs[0] not in product.inputs:
        return None
    behind = [user.op_type for user, _ in product.outputs[0].uses()]
    if product.outputs[0].is_graph_output() or set(behind) != {QUANTIZE}:
        return None
    return product if product.graph is node.graph else None
