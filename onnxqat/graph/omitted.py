"""Optional inputs that are written as empty names behind the last one that is given."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import walk


def drop(model: ir.Model) -> ir.Model:
    """Take trailing empty inputs from every node of `model`, its bodies and its functions, in place.

    ONNX gives both ways to leave an optional input out the same meaning. onnxruntime 1.32 counts the inputs of some
    operators instead, and ends the process: LayerNormalization with a bias of that form is a SIGSEGV.
    """
    for node in walk.nodes(model):
        cut(node)
    return model


def cut(node: ir.Node) -> bool:
    """Take trailing empty inputs from `node`; whether it had any."""
    before = given = len(node.inputs)
    while given and node.inputs[given - 1] is None:
        given -= 1
    if given < before:
        node.resize_inputs(given)
    return given < before
