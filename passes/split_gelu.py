"""Gelu as the operators that it is written out with, for targets that read no opset that has it."""

from __future__ import annotations

import math

import onnx_ir as ir

from onnxqat.graph import build, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log
from onnxqat.passes._parts import Parts
from onnxqat.passes._setting import Setting

FIRST_OPSET = 20
"""The first that has Gelu."""
CUBIC = 0.044715
"""Factor of x³ in the form with Tanh (Hendrycks and Gimpel, Gaussian Error Linear Units)."""


class SplitGelu(Pass):
    """A Gelu becomes ``0.5 * x * (1 + erf(x / sqrt(2)))``, with ``approximate="tanh"`` the form with Tanh.

    ONNX has the operator from opset 20 on. RKNN-Toolkit2 2.5 reads up to 19, where exporters write it out.

    1. The last product keeps the names of node and result.
    2. Left alone: other types than float32.

    Tolerance: float rounding, 1e-6 of the output's range. ::

        y = Gelu(x)
        d = Div(x, 1.4142135)  e = Erf(d)  a = Add(e, 1)  m = Mul(x, a)  y = Mul(m, 0.5)
    """

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run where the target reads no opset that has the operator, and its table no row for it."""
        return cls() if setting.table.opset[1] < FIRST_OPSET and "Gelu" not in setting.operators else None

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Split; see the class."""
        log, stamp = Log(), {build.CREATED_BY: self.name}
        for scope, node in walk.nodes_to_edit(model):
            if node.op_type == "Gelu" and not node.domain and node.outputs[0].dtype == ir.DataType.FLOAT:
                _write(Parts(scope, node, context.names, stamp))
                log.did("Gelu became its parts", node)
        return log.result()


def _write(parts: Parts) -> None:
    """Put the parts in the place of the node."""
    x = parts.node.inputs[0]
    assert x is not None
    if query.attribute(parts.node, "approximate", "none") == "tanh":
        cube = parts.made("Mul", parts.made("Mul", x, x), x)
        inner = parts.made("Add", x, parts.made("Mul", cube, CUBIC))
        gate = parts.made("Tanh", parts.made("Mul", inner, math.sqrt(2 / math.pi)))
    else:
        gate = parts.made("Erf", parts.made("Div", x, math.sqrt(2)))
    product = parts.made("Mul", x, parts.made("Add", gate, 1.0))
    parts.close(parts.made("Mul", product, 0.5))
