"""Pad without its input `axes`: amounts for every axis."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, drop_unused


class PadAllAxes(Pass):
    """A Pad that names its axes (opset 18) gets amounts for all axes instead, 0 for those that it did not name.

    onnxruntime (1.32) moves Transpose through Pad when integer convolutions around it take another layout, and then
    reads the amounts as those of all axes: a Pad with axes fails at run time.

    1. Constant amounts become the constant ``<pads>_all_axes``.
    2. Computed amounts, and those that are graph inputs, are picked apart by a Gather with constant indices.
    3. Left alone: Pad without axes, with axes that are computed, or of unknown rank.

    Tolerance: none. ::

        y = Pad(x, pads, , axes)  <int64[2] pads = {1, 2}, int64[1] axes = {2}>   of rank 3
        y = Pad(x, pads_all_axes) <int64[6] pads_all_axes = {0, 0, 1, 0, 0, 2}>
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Rewrite each Pad; see the class."""
        log = Log()
        for scope, node in walk.nodes_to_edit(model):
            if node.op_type == "Pad" and node.domain == "" and query.input_at(node, 3) is not None:
                self._rewrite(scope, node, context.names, log)
        return log.result()

    def _rewrite(self, scope: walk.Scope, node: ir.Node, names: build.Names, log: Log) -> None:
        """Give one Pad amounts for all axes, 0 for those that it did not name, and drop its input `axes`."""
        rank, axes, pads = query.rank(node.inputs[0]), query.constant_array(node.inputs[3]), node.inputs[1]
        if rank is None or axes is None or pads is None:
            log.left("a Pad of unknown rank or axes keeps them", node)
            return
        chosen = [int(axis) % rank for axis in axes.reshape(-1)]
        place = {axis: index for index, axis in enumerate(chosen)}
        nothing = 2 * len(chosen)  # where the amounts are followed by a 0
        begins = [place.get(axis, nothing) for axis in range(rank)]
        ends = [len(chosen) + place[axis] if axis in place else nothing for axis in range(rank)]
        indices = np.asarray(begins + ends, np.int64)
        amounts = query.constant_array(pads)
        name = names.fresh(f"{pads.name}_all_axes")
        if amounts is not None:
            complete = build.constant(scope, name, np.append(amounts.reshape(-1), 0)[indices], before=node)
        else:
            complete = self._gathered(scope, node, pads, indices, name, names)
        old = (node.inputs[1], node.inputs[3])
        node.replace_input_with(1, complete)
        node.resize_inputs(3 if node.inputs[2] is not None else 2)
        for value in old:
            drop_unused(value)
        log.did("Pad got amounts for all axes", node)

    def _gathered(
        self, scope: walk.Scope, node: ir.Node, pads: ir.Value, indices: np.ndarray, name: str, names: build.Names
    ) -> ir.Value:
        """Compute the amounts from computed ones: gather them, and a 0 behind the last, in the order of all axes."""
        stamp = {build.CREATED_BY: self.name}
        zero = build.constant(scope, names.fresh(f"{name}_zero"), np.zeros(1, np.int64), before=node)
        order = build.constant(scope, names.fresh(f"{name}_indices"), indices, before=node)
        shape = ir.Shape([len(indices)])

        def make(op_type: str, inputs: list[ir.Value], output: str, size: ir.Shape | None) -> ir.Value:
            made = build.node(
                op_type,
                inputs,
                [output],
                {"axis": 0},
                dtype=ir.DataType.INT64,
                shape=size,
                name=names.fresh(f"{output}_{op_type}"),
                stamp=stamp,
            )
            scope.insert_before(node, made)
            return made.outputs[0]

        longer = make("Concat", [pads, zero], names.fresh(f"{name}_and_zero"), None)
        return make("Gather", [longer, order], name, shape)
