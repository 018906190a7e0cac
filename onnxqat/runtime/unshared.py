"""Weights and zero points that several nodes read, each reader with a copy of its own.

onnxruntime (1.32) turns int8 weights into uint8 where ``session.x64quantprecision`` is set, reader by reader, and names
the results after weight and zero point: with two readers, the second ends in "Attempt to replace the existing tensor".
"""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import build, edit, qdq, query, walk


def unshare(model: ir.Model) -> None:
    """Give each reader behind a quantizer of a constant a constant and a zero point that no other reads, in `model`.

    Copies are those of graphs: function bodies hold no initializers, and share nothing once they are inlined.
    """
    names, seen = build.Names(model), set[int]()
    for node in list(walk.nodes(model)):
        if not qdq.is_dequantize(node) or not isinstance(node.graph, ir.Graph):
            continue
        chain = _chain(node)
        root = chain[-1].inputs[0]
        tensor = query.constant_tensor(root)
        if root is None or tensor is None:
            continue
        read = {id(v) for v in (root, _zero_point(chain)) if v is not None}
        for reader, index in list(node.outputs[0].uses()):
            if read & seen:
                reader.replace_input_with(index, _copy_chain(chain, root, tensor, names))
            seen |= read
    edit.remove_unused(model)  # a chain without readers would still be turned


def _chain(dequantize: ir.Node) -> list[ir.Node]:
    """`dequantize` and the Clip and QuantizeLinear in front of it, from the back."""
    chain = [dequantize]
    while (source := chain[-1].inputs[0]) is not None and (maker := source.producer()) is not None:
        if maker.op_type != "Clip" and not qdq.is_quantize(maker):
            break
        chain.append(maker)
    return chain


def _zero_point(chain: list[ir.Node]) -> ir.Value | None:
    return chain[0].inputs[2] if len(chain[0].inputs) > 2 else None


def _copy_chain(chain: list[ir.Node], root: ir.Value, tensor: ir.TensorProtocol, names: build.Names) -> ir.Value:
    """Copy a constant with the nodes between it and one reader, and return the copy's result."""
    scope = chain[0].graph
    assert scope is not None

    def constant(old: ir.Value, held: ir.TensorProtocol) -> ir.Value:
        return build.constant(scope, names.fresh(f"{old.name}_copy"), held.numpy(), held.dtype, before=chain[-1])

    value = constant(root, tensor)
    zero = _zero_point(chain)
    held = query.constant_tensor(zero)
    copied_zero = zero if zero is None or held is None else constant(zero, held)
    for node in reversed(chain):
        output = node.outputs[0]
        copy = ir.Node(
            node.domain,
            node.op_type,
            [value, *(copied_zero if v is zero else v for v in node.inputs[1:])],
            list(node.attributes.values()),
            num_outputs=1,
            name=names.fresh(f"{node.name}_copy"),
        )
        value = copy.outputs[0]
        value.name, value.type, value.shape = names.fresh(f"{output.name}_copy"), output.type, output.shape
        scope.insert_before(chain[0], copy)
    return value
