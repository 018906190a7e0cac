"""RMSNormalization as the operators that it is written out with, for targets that read no opset that has it."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import build, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log
from onnxqat.passes._parts import Parts
from onnxqat.passes._setting import Setting

FIRST_OPSET = 23
"""The first that has RMSNormalization."""


class SplitRmsNormalization(Pass):
    """An RMSNormalization becomes ``x / sqrt(mean(x * x) + epsilon) * scale``, as ONNX defines it.

    ONNX has the operator from opset 23 on. RKNN-Toolkit2 2.5 reads up to 19, where exporters write it out.

    1. The last product keeps the names of node and result.
    2. Left alone: other types than float32; an axis from the front where the number of axes is not known.

    Tolerance: float rounding, 1e-6 of the output's range. ::

        y = RMSNormalization <axis = -1, epsilon = 1e-5> (x, s)
        q = Mul(x, x)  m = ReduceMean(q, [-1])  a = Add(m, 1e-5)  r = Sqrt(a)  n = Div(x, r)  y = Mul(n, s)
    """

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run where the target reads no opset that has the operator, and its table no row for it."""
        unknown = setting.table.opset[1] < FIRST_OPSET
        return cls() if unknown and "RMSNormalization" not in setting.operators else None

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Split; see the class."""
        log, stamp = Log(), {build.CREATED_BY: self.name}
        for scope, node in walk.nodes_to_edit(model):
            if node.op_type != "RMSNormalization" or node.domain or node.outputs[0].dtype != ir.DataType.FLOAT:
                continue
            axes = _axes(node)
            if axes:
                _write(Parts(scope, node, context.names, stamp), axes)
                log.did("RMSNormalization became its parts", node)
        return log.result()


def _axes(node: ir.Node) -> tuple[int, ...]:
    """The axes that `node` takes the mean over, counted from the end; none where they are not known."""
    axis, rank = int(query.attribute(node, "axis", -1)), query.rank(node.inputs[0])
    if axis >= 0:
        axis = 0 if rank is None else axis - rank
    return tuple(range(axis, 0))


def _write(parts: Parts, axes: tuple[int, ...]) -> None:
    """Put the parts in the place of the node."""
    x, scale = parts.node.inputs[:2]
    assert x is not None
    assert scale is not None
    whole = parts.node.outputs[0].shape
    each = None if whole is None else ir.Shape([*list(whole)[: len(whole) - len(axes)], *[1] * len(axes)])
    mean = parts.made("ReduceMean", parts.made("Mul", x, x), axes, shape=each)
    total = parts.made("Add", mean, float(query.attribute(parts.node, "epsilon", 1e-5)), shape=each)
    parts.close(parts.made("Mul", parts.made("Div", x, parts.made("Sqrt", total, shape=each)), scale))
