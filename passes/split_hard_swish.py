"""HardSwish as HardSigmoid and product, for targets that have the product on integers alone."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import build, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, replace
from onnxqat.passes._selective import SelectivePass
from onnxqat.passes._setting import Setting


class SplitHardSwish(SelectivePass):
    """A HardSwish becomes HardSigmoid, of alpha 1/6 and beta 0.5, and the product with its input, as ONNX defines it.

    onnxruntime has no kernel of the operator and does the same when it opens a model, too late for pairs around the
    product, which then runs in float.

    1. The product keeps the names of node and result.
    2. Left alone: nodes of which `left_out` is true.

    Tolerance: float rounding, 1e-6 of the output's range. ::

        y = HardSwish(x)
        g = HardSigmoid <alpha = 0.1666667, beta = 0.5> (x)   y = Mul(x, g)
    """

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run for tables with rows for HardSigmoid and Mul and none for HardSwish."""
        has = setting.operators
        return cls(setting) if {"HardSigmoid", "Mul"} <= has and "HardSwish" not in has else None

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Split; see the class."""
        log, stamp = Log(), {build.CREATED_BY: self.name}
        for scope, node in walk.nodes_to_edit(model):
            if node.op_type == "HardSwish" and not node.domain and not self.stays_float(node):
                _split(scope, node, context.names, stamp)
                log.did("HardSwish became HardSigmoid and Mul", node)
        return log.result()


def _split(scope: walk.Scope, node: ir.Node, names: build.Names, stamp: dict[str, str]) -> None:
    """Replace HardSwish by x HardSigmoid(x) with alpha 1/6 and beta 1/2, which is its definition in ONNX."""
    x, output = node.inputs[0], node.outputs[0]
    name, label = str(output.name), node.name or ""
    gate = build.node(
        "HardSigmoid",
        [x],
        [names.fresh(f"{name}_gate")],
        {"alpha": 1 / 6, "beta": 0.5},
        dtype=output.dtype,
        shape=output.shape,
        name=names.fresh(f"{name}_HardSigmoid"),
        stamp=stamp,
    )
    output.name = None
    product = build.node(
        "Mul", [x, gate.outputs[0]], [name], dtype=output.dtype, shape=output.shape, name=label, stamp=stamp
    )
    product.metadata_props.update(node.metadata_props)
    for made in (gate, product):
        scope.insert_before(node, made)
    replace(node, product.outputs[0])
