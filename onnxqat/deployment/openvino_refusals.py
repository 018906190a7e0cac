"""OpenVINO's error texts, translated to the node that they are about and to what helps."""

from __future__ import annotations

import re

import onnx

from onnxqat.errors import CheckError
from onnxqat.graph.qdq import DEQUANTIZE

_PASS = re.compile(
    r"\[(?P<step>\w+)\] END: node: (?:\w+::)?(?P<type>\w+) (?P<name>.+?) \(.*? -> .*?CALLBACK HAS THROWN: (?P<why>.*)",
    re.S,
)
_ONNX_NODE = re.compile(r"(?:ONNX node|Node) ['\"]?<?(?:Node\((?P<type>[\w.]+)\)(?:: (?P<name>[^>'\"]+))?)>?", re.S)
_UNKNOWN = re.compile(r"does not support the following ONNX operations:\s*(?P<names>[^\n]+)")


def translated(text: str, model: onnx.ModelProto) -> CheckError:
    """Return the error for a model that OpenVINO did not take.

    Args:
        text: what OpenVINO threw.
        model: the file; external data need not be loaded.
    """
    threw = _PASS.search(text)
    if threw is not None:
        return _of_pass(threw, model)
    unknown = _UNKNOWN.search(text)
    if unknown is not None:
        return _of_operators(unknown["names"], model)
    found = _ONNX_NODE.search(text)
    why = " ".join(text.split())[-400:]
    if found is not None:
        name = (found["name"] or "").strip()
        hint = "leave the node in float with `insert-qdq --exclude`, or rewrite it; `lint --backend openvino-cpu` says more"
        return CheckError("handoff-failed", f"node {name!r} ({found['type']}): {why}", hint=hint)
    return CheckError("handoff-failed", why)


def _of_pass(threw: re.Match[str], model: onnx.ModelProto) -> CheckError:
    """Return the error for a step of the low precision transformations that threw at a node."""
    node = _node(threw["name"], model)
    step = threw["step"]
    name = node.name or node.output[0] if node is not None else threw["name"]
    op_type = node.op_type if node is not None else threw["type"]
    constant = None if node is None else _paired_constant(node, model)
    if constant is not None:
        text = f"node {name!r} ({op_type}): OpenVINO's {step} takes no pair on the constant operand {constant!r}"
        hint = "place the pairs anew with `insert-qdq --replace --backend openvino-cpu`, which leaves constants bare"
        return CheckError("handoff-failed", text, hint=hint)
    why = " ".join(threw["why"].split())[:200]
    text = f"node {name!r} ({op_type}): OpenVINO's {step} threw: {why}"
    return CheckError("handoff-failed", text, hint=f"leave the node in float: `insert-qdq --exclude '{name}'`")


def _node(name: str, model: onnx.ModelProto) -> onnx.NodeProto | None:
    """The node of the file that OpenVINO calls `name`, which may carry the name of a step behind a slash."""
    while name:
        node: onnx.NodeProto
        for node in model.graph.node:
            if name in (node.name, *node.output):
                return node
        name = name.rpartition("/")[0]
    return None


def _paired_constant(node: onnx.NodeProto, model: onnx.ModelProto) -> str | None:
    """Name of a constant, stored or computed, that `node` reads through a pair; None without one."""
    makers = {output: maker for maker in model.graph.node for output in maker.output}
    constants = {tensor.name for tensor in model.graph.initializer}
    for maker in model.graph.node:
        if all(name in constants for name in maker.input if name):
            constants.update(maker.output)
    for name in node.input:
        maker = makers.get(name)
        if maker is not None and maker.op_type == DEQUANTIZE and name in constants:
            source = makers.get(maker.input[0])
            return str(source.input[0] if source is not None and source.input else maker.input[0])
    return None


def _of_operators(names: str, model: onnx.ModelProto) -> CheckError:
    """Return the error for operators that OpenVINO does not have."""
    types = [name.strip().rpartition(".")[2] for name in names.split(",")]
    nodes = [repr(node.name or node.output[0]) for node in model.graph.node if node.op_type in types]
    text = f"OpenVINO has no {', '.join(types)}: node{'s' if len(nodes) > 1 else ''} {', '.join(nodes[:5])}"
    return CheckError(
        "handoff-failed", text, hint="`onnxqat cut` takes such nodes off, or write them with other operators"
    )
