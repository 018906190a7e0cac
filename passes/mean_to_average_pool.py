"""Mean over the whole map as a GlobalAveragePool, for targets that have an integer kernel for that."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.analysis import grouped_nodes
from onnxqat.graph import build, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, replace
from onnxqat.passes._selective import SelectivePass
from onnxqat.passes._setting import Setting


class MeanToAveragePool(SelectivePass):
    """A ReduceMean over both axes of a map becomes a GlobalAveragePool, behind which a Flatten drops these axes.

    It is the operator for the same sum. torch's dynamo exporter writes every adaptive pool to 1 x 1 as a ReduceMean, and so
    does ``x.mean((2, 3))``, as in squeeze and excitation.

    1. With ``keepdims = 0`` a Flatten gives the shape (N, C).
    2. Left alone: means that are part of a normalization, of other axes, of a tensor whose rank is not known to be 4, and
       nodes of which `left_out` is true.

    Tolerance: float rounding, since the order of the additions may differ. ::

        y = ReduceMean <keepdims = 0> (x, [2, 3])               # x: N, C, H, W
        y_pool = GlobalAveragePool(x)   y = Flatten(y_pool)
    """

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run for tables with a row for GlobalAveragePool and none for ReduceMean."""
        operators = setting.operators
        return cls(setting) if "GlobalAveragePool" in operators and "ReduceMean" not in operators else None

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Rewrite each mean; see the class."""
        log = Log()
        for scope in walk.scopes(model):
            means = [node for node in scope if _is_of_the_map(node)]
            if not means or not isinstance(scope, ir.Graph):
                continue
            grouped = grouped_nodes.of(scope)
            for node in means:
                if node in grouped or self.stays_float(node):
                    continue
                _pool(scope, node, context.names, {build.CREATED_BY: self.name})
                log.did("a ReduceMean over the whole map became a GlobalAveragePool", node)
        return log.result()


def _is_of_the_map(node: ir.Node) -> bool:
    """Check whether `node` takes the mean over both spatial axes of a tensor of rank 4, and of no others."""
    if node.op_type != "ReduceMean" or node.domain or query.rank(node.inputs[0]) != 4:
        return False
    axes = query.attribute(node, "axes", None)  # an input from opset 18 on
    if axes is None and len(node.inputs) > 1:
        axes = query.constant_array(node.inputs[1])
    return axes is not None and sorted(int(axis) % 4 for axis in axes) == [2, 3]


def _pool(scope: ir.Graph, node: ir.Node, names: build.Names, stamp: dict[str, str]) -> None:
    """Put a GlobalAveragePool, and a Flatten where axes go, in the place of `node`."""
    source, output, name = node.inputs[0], node.outputs[0], str(node.outputs[0].name)
    assert source is not None
    assert source.shape is not None
    keeps, output.name = bool(query.attribute(node, "keepdims", 1)), None
    shape = ir.Shape([*list(source.shape)[:2], 1, 1])
    result = name if keeps else names.fresh(f"{name}_pool")
    made = build.node(
        "GlobalAveragePool", [source], [result], dtype=output.dtype, shape=shape, name=str(node.name), stamp=stamp
    )
    scope.insert_before(node, made)
    if not keeps:
        label = names.fresh(f"{query.label(node)}_Flatten")
        flat = ir.Shape(list(source.shape)[:2])
        made = build.node(
            "Flatten", [made.outputs[0]], [name], {"axis": 1}, dtype=output.dtype, shape=flat, name=label, stamp=stamp
        )
        scope.insert_before(node, made)
    made.metadata_props.update(node.metadata_props)
    replace(node, made.outputs[0])
