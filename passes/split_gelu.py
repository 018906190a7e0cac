"""Gelu as the operators that it is written out with, for targets that read no opset that has it."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log
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
        for scope in walk.scopes(model):
            for node in list(scope):
                if node.op_type == "Gelu" and not node.domain and node.outputs[0].dtype == ir.DataType.FLOAT:
                    _Parts(scope, node, context.names, stamp).write()
                    log.did("Gelu became its parts", node)
        return log.result()


class _Parts:
    """The parts of one Gelu."""

    def __init__(self, scope: walk.Scope, node: ir.Node, names: build.Names, stamp: dict[str, str]) -> None:
        self.scope, self.node, self.names, self.stamp = scope, node, names, stamp
        self.base = str(node.outputs[0].name)

    def write(self) -> None:
        """Put the parts in the place of the node."""
        node, output = self.node, self.node.outputs[0]
        x = node.inputs[0]
        assert x is not None
        if query.attribute(node, "approximate", "none") == "tanh":
            cube = self._made("Mul", self._made("Mul", x, x), x)
            inner = self._made("Add", x, self._made("Mul", cube, CUBIC))
            gate = self._made("Tanh", self._made("Mul", inner, math.sqrt(2 / math.pi)))
        else:
            gate = self._made("Erf", self._made("Div", x, math.sqrt(2)))
        product = self._made("Mul", x, self._made("Add", gate, 1.0))
        result = self._made("Mul", product, 0.5)
        last = result.producer()
        assert last is not None
        last.name = node.name
        last.metadata_props.update(node.metadata_props)
        result.metadata_props.update(output.metadata_props)
        output.name, result.name = None, self.base
        output.replace_all_uses_with(result, replace_graph_outputs=True)
        self.scope.remove(node, safe=True)

    def _made(self, op_type: str, *operands: ir.Value | float) -> ir.Value:
        """The result of a new node; numbers become constants."""
        name = self.names.fresh(f"{self.base}_{op_type}")
        values = [
            build.constant(self.scope, self.names.fresh(f"{name}_value"), np.asarray(one, np.float32), before=self.node)
            if isinstance(one, float)
            else one
            for one in operands
        ]
        output = self.node.outputs[0]
        made = build.node(op_type, values, [name], dtype=output.dtype, shape=output.shape, name=name, stamp=self.stamp)
        self.scope.insert_before(self.node, made)
        return made.outputs[0]
