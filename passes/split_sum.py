"""Sum of several tensors as a chain of Add, for targets that add two on integers."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import build, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, replace
from onnxqat.passes._selective import SelectivePass
from onnxqat.passes._setting import Setting


class SplitSum(SelectivePass):
    """A Sum of n tensors becomes n - 1 Adds, from the first operand on, which is the order of runtimes.

    No table has a kernel on integers that adds more than two, so that a Sum would run in float. Every Add gets pairs as
    the table says, one for each partial sum.

    1. The last Add keeps the names of node and result.
    2. A Sum of one tensor becomes an Identity.
    3. Left alone: nodes of which `left_out` is true.

    Tolerance: none; the additions are those of the operator. ::

        y = Sum(a, b, c)
        s = Add(a, b)   y = Add(s, c)
    """

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run for tables with a row for Add and none for Sum."""
        return cls(setting) if "Add" in setting.operators and "Sum" not in setting.operators else None

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Split; see the class."""
        log, stamp = Log(), {build.CREATED_BY: self.name}
        for scope, node in walk.nodes_to_edit(model):
            if node.op_type != "Sum" or node.domain or self.stays_float(node) or None in node.inputs:
                continue
            made = _split(scope, node, context.names, stamp)
            log.did(f"Sum became {made} Add" if made else "Sum of one tensor became Identity", node)
        return log.result()


def _split(scope: walk.Scope, node: ir.Node, names: build.Names, stamp: dict[str, str]) -> int:
    """Put the chain in the place of `node`; returns the number of its Adds."""
    first, *others = [value for value in node.inputs if value is not None]
    output, label = node.outputs[0], query.label(node)
    name, output.name = str(output.name), None
    alike = all(value.shape is not None and value.shape == output.shape for value in node.inputs if value is not None)
    total = first
    for count, value in enumerate(others, start=1):
        last = count == len(others)
        made = build.node(
            "Add",
            [total, value],
            [name if last else names.fresh(f"{name}_sum_{count}")],
            dtype=output.dtype,
            shape=output.shape if last or alike else None,
            name=str(node.name) if last else names.fresh(f"{label}_Add_{count}"),
            stamp=stamp,
        )
        scope.insert_before(node, made)
        total = made.outputs[0]
    if not others:
        kept = build.node(
            "Identity", [first], [name], dtype=output.dtype, shape=output.shape, name=str(node.name), stamp=stamp
        )
        scope.insert_before(node, kept)
        total = kept.outputs[0]
    maker = total.producer()
    assert maker is not None
    maker.metadata_props.update(node.metadata_props)
    replace(node, total)
    return len(others)
