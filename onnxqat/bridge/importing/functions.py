"""Model-local functions inlined at their calls.

A function imports opsets of its own. Where they differ from the model's, each of its nodes keeps its version
(``node.version``, which the operator table and the lowerings go by), and the shapes of the whole model are left open:
inference knows one version a domain.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx.defs
import onnx_ir as ir
from onnx_ir.passes import common as ir_passes

from onnxqat.errors import ModelError, UnsupportedError
from onnxqat.graph import query


def inline(model: ir.Model) -> tuple[ir.Model, bool]:
    """Replace every call of a model-local function by its body.

    Returns:
        The model, and whether nodes of different versions of a domain are now side by side.

    Raises:
        ModelError: ``model-invalid``, a function that calls itself, or a call with too many inputs.
        UnsupportedError: ``operator-unsupported``, a graph that is handed to a function.
    """
    if not model.functions:
        return model, False
    mixed = False
    for function in model.functions.values():
        _check_calls(model, function.all_nodes())
        _share_constants(function)
        _separate_outputs(function)
        mixed |= _keep_versions(model, function)
    _check_calls(model, model.graph.all_nodes())
    try:
        return ir_passes.InlinePass()(model).model, mixed
    except ir.passes.PreconditionError as error:
        raise ModelError("model-invalid", str(error)) from None


def _share_constants(function: ir.Function) -> None:
    """Make every copy of a Constant node hold one tensor object, which is one Parameter however often it is called."""
    for node in function.all_nodes():
        tensor = query.constant_tensor(node.outputs[0]) if node.op_type == "Constant" else None
        if tensor is not None and "value" not in node.attributes:
            node.attributes.clear()
            node.attributes["value"] = ir.AttrTensor("value", tensor)


def _separate_outputs(function: ir.Function) -> None:
    """Put Identity behind outputs that are inputs or one value twice; inlining would rename the caller's value."""
    taken = {id(value) for value in function.inputs}
    for index, value in enumerate(function.outputs):
        if id(value) in taken:
            node = ir.node("Identity", [value])
            function.append(node)
            function.outputs[index] = node.outputs[0]
        taken.add(id(value))


def _keep_versions(model: ir.Model, function: ir.Function) -> bool:
    """Give nodes of other versions than the model's their own; whether that makes a difference."""
    different = False
    for node in function.all_nodes():
        here, outside = query.opset(model, function, node.domain), query.opset(model, None, node.domain)
        if here != outside and node.domain in model.opset_imports:
            node.version = here
            different |= _since(node, here) != _since(node, outside)
    for domain in function.opset_imports:
        function.opset_imports[domain] = model.opset_imports.get(domain, function.opset_imports[domain])
    return different


def _since(node: ir.Node, version: int) -> int:
    if not onnx.defs.has(node.op_type, node.domain):
        return 0
    try:
        return int(onnx.defs.get_schema(node.op_type, version, node.domain).since_version)
    except onnx.defs.SchemaError:
        return -1


def _check_calls(model: ir.Model, nodes: Iterable[ir.Node]) -> None:
    for node in nodes:
        function = model.functions.get(node.op_identifier())
        if function is None:
            continue
        name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        if len(node.inputs) > len(function.inputs) or len(node.outputs) > len(function.outputs):
            raise ModelError(
                "model-invalid",
                f"{query.label(node)} calls {name} with {len(node.inputs)} inputs and {len(node.outputs)} outputs; "
                f"it has {len(function.inputs)} and {len(function.outputs)}",
            )
        if any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values()):
            raise UnsupportedError(
                "operator-unsupported",
                f"the bridge does not implement: {name} (a function with a graph as attribute) at {query.label(node)}",
                hint="onnxqat refuses what it cannot compute exactly",
            )
