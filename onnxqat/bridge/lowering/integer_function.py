"""Calls of integer functions, shown as operators between pairs by :func:`onnxqat.integer_functions.calls.expand`."""

from __future__ import annotations

from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.bridge.integer.function_units import FloatTwin
from onnxqat.graph import query
from onnxqat.integer_functions import library
from onnxqat.integer_functions.definition import Call


def float_twin(view: NodeView) -> Lowered:
    """Emit the float operator of the function; between quantizers a unit takes its place."""
    function = library.named(view.node.op_type)
    if function is None:
        raise view.refuse("no such integer function")
    attributes = {name: query.attribute(view.node, name, None) for name in view.node.attributes}
    call = Call(tuple(attributes.get("axes") or (-1,)), 1, {}, attributes)
    path = view.builder.add_module(f"{query.label(view.node)}_float", FloatTwin(function, call))
    inputs = tuple(view.tensor(index) for index in range(view.count))
    return view.builder.emit("call_module", path, inputs, name=view.base)
