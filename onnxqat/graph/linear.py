"""Linear layers that are written as a product and a sum: MatMul with a constant matrix, Add of a constant row."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import query


def bias_behind(product: ir.Node, transposed: ir.Value | None = None) -> ir.Node | None:
    """The Add of a constant row, or of one value, that alone reads the MatMul `product`; None where there is none.

    The matrix is a float32 constant of two axes. The sum has the shape of the product: the input has at least as many
    axes as the row, which a row of one axis ensures where the rank is unknown.

    Args:
        product: any node.
        transposed: the constant whose transpose `product` reads; by default it reads a constant.
    """
    if product.op_type != "MatMul" or product.domain or len(product.inputs) != 2:
        return None
    output, x = product.outputs[0], product.inputs[0]
    weight = query.constant_tensor(product.inputs[1] if transposed is None else transposed)
    if weight is None or len(weight.shape) != 2 or weight.dtype != ir.DataType.FLOAT:
        return None
    users = output.consumers()
    if output.is_graph_output() or query.reads(output) != 1 or users[0].graph is not product.graph:
        return None
    added = users[0]
    row = query.constant_tensor(constant_side(added)) if added.op_type == "Add" and not added.domain else None
    rank = query.rank(x)
    if row is None or rank in (0, 1) or len(row.shape) > (rank or 1) or query.constant_tensor(x) is not None:
        return None
    sizes = row.shape.numpy()
    columns = weight.shape.numpy()[1 if transposed is None else 0]
    fits = row.size == 1 or (sizes[-1:] == (columns,) and row.size == columns)
    return added if fits and row.dtype == ir.DataType.FLOAT else None


def constant_side(added: ir.Node) -> ir.Value | None:
    """The constant operand of an Add of a computed value and a constant; None where it has not exactly one."""
    constant = [v for v in added.inputs if v is not None and query.constant_tensor(v) is not None]
    return constant[0] if len(constant) == 1 and len(added.inputs) == 2 else None
