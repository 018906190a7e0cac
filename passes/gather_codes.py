"""Rows of a quantized table are picked as codes and dequantized behind the Gather."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, edit, qdq, query, walk
from onnxqat.graph.quantizer import Quantizer
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, remove_with_constants, scope_map
from onnxqat.passes._setting import Setting


class GatherCodes(Pass):
    """A Gather of rows reads the codes of a table; only the rows that it picked are dequantized.

    A runtime would dequantize the whole table in each run, for a few rows of it.

    1. Stored integers -> DequantizeLinear -> Gather along the first axis, with one scale for each row and zero points
       of 0: the codes of the rows, cast to float, times their scales, which the same indices pick.
    2. Other readers of the table keep the DequantizeLinear.
    3. Left alone, with the reason: a scale for the whole table, for columns or blocks, zero points, tables that are
       not float32.

    Tolerance: none. ::

        d = DequantizeLinear <axis = 0> (w, s, z)   y = Gather(d, i)
        g = Gather(w, i)   c = Cast <to = 1> (g)   k = Gather(w_row_scale, i)   y = Mul(c, k)
    """

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run for tables that state `gather_codes`."""
        return cls() if setting.table.gather_codes else None

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Move the dequantization behind each Gather; see the class."""
        log, scopes = Log(), scope_map(model)
        for quantizer in qdq.quantizers(model, every=True):
            users = [n for value in quantizer.outputs for n in value.consumers() if _is_gather(n, value)]
            if not users or not quantizer.stored:
                continue
            reason = _refusal(quantizer)
            if reason:
                log.left(f"a table is dequantized in front of Gather: {reason}", *users)
                continue
            first = quantizer.dequantize[0]
            scale = _row_scales(quantizer, scopes[id(first.graph)], context.names)
            for user in users:
                _move(user, quantizer.input, scale, context.names)
            for node in quantizer.dequantize:
                if not query.is_used(node.outputs[0]):
                    remove_with_constants(node)
            log.did("rows of a table are picked as codes", *users)
        return log.result()


def _is_gather(node: ir.Node, table: ir.Value) -> bool:
    return node.op_type == "Gather" and not node.domain and node.inputs[0] is table


def _refusal(quantizer: Quantizer) -> str:
    qparams, outputs = quantizer.qparams, quantizer.outputs
    if qparams.axis != 0 or qparams.block_size or qparams.scale.ndim != 1:
        return "its scale is not one for each row"
    if qparams.zero_point.any():
        return "it has zero points"
    if any(value.dtype not in (None, ir.DataType.FLOAT) for value in outputs):
        return "it is not float32"
    picks = (node for value in outputs for node in value.consumers() if _is_gather(node, value))
    return "" if all(query.attribute(node, "axis", 0) == 0 for node in picks) else "it is read along another axis"


def _row_scales(quantizer: Quantizer, scope: walk.Scope, names: build.Names) -> ir.Value:
    """The scales with an axis of size 1 for each other axis of the table."""
    scale = np.asarray(quantizer.qparams.scale, np.float32)
    rank = len(query.constant_tensor(quantizer.input).shape)  # type: ignore[union-attr]
    name = names.fresh(f"{quantizer.input.name}_row_scale")
    return build.constant(scope, name, scale.reshape(-1, *(1,) * (rank - 1)), before=quantizer.dequantize[0])


def _move(gather: ir.Node, codes: ir.Value, scale: ir.Value, names: build.Names) -> None:
    """Put the Gather of codes, its Cast, the Gather of scales and their product in the place of `gather`."""
    scope, output, indices = walk.scope_of(gather), gather.outputs[0], gather.inputs[1]
    name, stamp = str(output.name), {build.CREATED_BY: GatherCodes.name}
    whole = output.shape
    rows = None if whole is None else ir.Shape([*list(whole)[:-1], 1])

    def add(op_type: str, inputs: list[ir.Value | None], suffix: str, shape: ir.Shape | None) -> ir.Value:
        made = names.fresh(f"{name}_{suffix}") if suffix else name
        node = build.node(
            op_type,
            inputs,
            [made],
            {"to": ir.DataType.FLOAT.value} if op_type == "Cast" else None,
            dtype=codes.dtype if suffix == "codes" else ir.DataType.FLOAT,
            shape=shape,
            name=names.fresh(f"{name}_{suffix or 'rows'}_{op_type}"),
            stamp=stamp,
        )
        scope.insert_before(gather, node)
        return node.outputs[0]

    output.name = None
    picked = add("Cast", [add("Gather", [codes, indices], "codes", whole)], "numbers", whole)
    product = add("Mul", [picked, add("Gather", [scale, indices], "scales", rows)], "", whole)
    product.metadata_props.update(output.metadata_props)
    edit.rewire(output.uses(), product)
    output.replace_all_uses_with(product, replace_graph_outputs=True)
    scope.remove(gather, safe=True)
