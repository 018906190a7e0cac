"""Questions about values and nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onnxqat.graph import walk

# onnxruntime's optimizers write these under ONNX's domain in every opset, and its sessions take them.
BEYOND_OPSET = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})

DEFAULT_MODES = {"Pad": "constant", "Resize": "nearest", "DepthToSpace": "DCR", "GridSample": "linear"}


def constant_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of an initializer or of a Constant node's output; None where the value is not constant.

    An initializer that is also a graph input is not constant: the caller may override it.
    """
    if value is None:
        return None
    maker = value.producer()
    if maker is None:
        return None if value.is_graph_input() else value.const_value
    if maker.domain or maker.op_type != "Constant":
        return None
    return _constant_node_tensor(maker)


def _constant_node_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            return None
        if name == "value":
            return attribute.as_tensor()
        if name in ("value_float", "value_floats"):
            return ir.Tensor(np.asarray(attribute.value, np.float32))
        if name in ("value_int", "value_ints"):
            return ir.Tensor(np.asarray(attribute.value, np.int64))
    return None


def constant_array(value: ir.Value | None) -> np.ndarray | None:
    """The numpy array of a constant value, or None; 2- and 4-bit types come unpacked, as ml_dtypes types."""
    found = constant_tensor(value)
    return None if found is None else found.numpy()


def input_at(node: ir.Node, index: int) -> ir.Value | None:
    """Input `index` of `node`; None where it is omitted, by an empty name or at the end of the list."""
    return node.inputs[index] if index < len(node.inputs) else None


def producer(value: ir.Value | None) -> ir.Node | None:
    """The node that makes `value`; None for graph inputs, initializers and omitted inputs."""
    return None if value is None else value.producer()


def is_float(value: ir.Value | None) -> bool:
    """Check whether the element type of `value` is known to be a float type that can be quantized."""
    return value is not None and value.dtype in FLOATS


def reads(value: ir.Value) -> int:
    """Number of node inputs that read `value`; ``value.uses()`` would copy all, thousands for a scale of many pairs."""
    return len(value._uses)  # noqa: SLF001


def is_used(value: ir.Value) -> bool:
    """Check whether a node reads `value`, or it is a graph output."""
    return reads(value) > 0 or value.is_graph_output()


def rank(value: ir.Value | None) -> int | None:
    """Number of dimensions, or None where it is unknown."""
    return None if value is None or value.shape is None else len(value.shape)


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape when every dimension is a known integer, otherwise None."""
    if value is None or value.shape is None:
        return None
    dims = tuple(d for d in value.shape if isinstance(d, int))
    return dims if len(dims) == len(value.shape) else None


def attribute(node: ir.Node, name: str, default: Any) -> Any:
    """Value of an attribute; `default` where it is absent. Strings are decoded, tensors are ir tensors."""
    found = node.attributes.get(name)
    if found is None:
        return default
    return found.value


def takes_arguments(node: ir.Node) -> bool:
    """Check whether attributes of `node`, in the body of a function, are arguments of the call: their values are unknown."""
    return any(attribute.is_ref() for attribute in node.attributes.values())


def mode(node: ir.Node) -> str | None:
    """The attribute ``mode`` of a node, or its default in ONNX's domain; None for operators without it."""
    if "mode" in node.attributes:
        return str(attribute(node, "mode", ""))
    return None if node.domain else DEFAULT_MODES.get(node.op_type)


def opset(model: ir.Model, scope: walk.Scope | None = None, domain: str = "") -> int:
    """Version of `domain` that holds in `scope`; 1 where it is not imported.

    A function has imports of its own, which hold in the subgraphs of its nodes too.
    """
    owner = None if scope is None or scope is model.graph else _function_of(model, scope)
    imports = model.opset_imports if owner is None else owner.opset_imports
    return imports.get(domain, imports.get("ai.onnx", 1) if domain == "" else 1)


def _function_of(model: ir.Model, scope: walk.Scope) -> ir.Function | None:
    if isinstance(scope, ir.Function):
        return scope
    return next((f for f in model.functions.values() if any(scope is graph for graph in f.subgraphs())), None)


def label(node: ir.Node) -> str:
    """Name of a node in messages: its own name, or its operator and first output if it has none."""
    if node.name:
        return node.name
    output = node.outputs[0].name if node.outputs else "?"
    return f"{node.op_type}->{output}"
