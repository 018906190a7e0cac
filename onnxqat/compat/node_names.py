"""Nodes of an ONNX file by the names that their torch modules and fx nodes had."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import onnx_ir as ir

from onnxqat.graph import query, walk

SCOPES = "pkg.torch.onnx.name_scopes"  # metadata of torch's exporter on torch.export: the modules around a node


def title(node: ir.Node) -> str:
    """The node's name, or the tensor that it makes: what a selection is resolved by."""
    return str(node.name or node.outputs[0].name)


def of_module(model: ir.Model, path: str) -> list[str]:
    """Names of the nodes that module `path` (``layer1.0.conv1``), or a module in it, was exported to.

    A node belongs to a module by what the exporter noted, by its own name (``/layer1/layer1.0/conv1/Conv``), or by a
    constant that it reads (``layer1.0.conv1.weight``).
    """
    return [title(node) for node in walk.nodes(model) if any(_is_below(at, path) for at in _modules(node))]


def of_fx_node(model: ir.Model, name: str) -> list[str]:
    """Names of the nodes that are called `name`, make a tensor of that name, or had it in torch.fx (``layer1_0_conv1``)."""
    exact = [n for n in walk.nodes(model) if name in (n.name, *(v.name for v in n.outputs))]
    found = exact or [n for n in walk.nodes(model) if any(re.sub(r"\W", "_", at) == name for at in _modules(n) if at)]
    return [title(node) for node in found]


def _is_below(at: str, path: str) -> bool:
    return at == path or at.startswith(f"{path}.")


def _modules(node: ir.Node) -> Iterator[str]:
    noted = node.metadata_props.get(SCOPES)
    if noted:
        try:
            scopes = json.loads(noted.replace("'", '"'))
        except ValueError:
            scopes = []
        yield from (str(scope) for scope in scopes[:-1])
    yield _from_path(str(node.name or ""))
    for value in node.inputs:
        if value is not None and value.name and query.constant_tensor(value) is not None and "." in value.name:
            yield value.name.rpartition(".")[0]


def _from_path(name: str) -> str:
    """``layer1.0.conv1`` from ``/layer1/layer1.0/conv1/Conv``, where a child repeats the name of its container."""
    parts: list[str] = []
    for part in name.split("/")[1:-1]:
        if parts and part.startswith(f"{parts[-1]}."):
            parts[-1] = part
        else:
            parts.append(part)
    return ".".join(parts)
