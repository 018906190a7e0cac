"""Nodes named for the submodule that they come from: ``/layer1/0/conv1/Conv``, as torch's tracing exporter names them.

A name pattern such as ``/layer1/*`` then means a submodule, whichever exporter wrote the file.
"""

from __future__ import annotations

import ast
from typing import Any

import onnx_ir as ir

from onnxqat.graph import walk

SCOPES = "pkg.torch.onnx.name_scopes"


def name_nodes(model: ir.Model) -> None:
    """Name every node of the main graph and of its subgraphs by its submodule and operator, unique in the model."""
    taken: set[str] = set()
    for node in model.graph.all_nodes():
        base = "/".join(["", *_path(node), node.op_type])
        name, count = base, 0
        while name in taken:
            count += 1
            name = f"{base}_{count}"
        taken.add(name)
        node.name = name


def _path(node: ir.Node) -> list[str]:
    """Attribute names from the root to the submodule; the last scope is that of the operator itself."""
    try:
        scopes = ast.literal_eval(node.metadata_props.get(SCOPES, "[]"))
    except (SyntaxError, ValueError):
        return []
    path = str(scopes[-2]) if isinstance(scopes, list) and len(scopes) > 1 else ""
    return path.split(".") if path and not path.startswith("_empty_nn_module_stack") else []


def strip(model: ir.Model) -> None:
    """Remove what exporters write about the machine that they ran on: stack traces with the paths of source files."""
    graphs = list(model.graphs())
    holders: list[Any] = [model, *graphs, *(n for g in graphs for n in g), *model.functions.values()]
    for graph in graphs:
        holders += walk.values(graph)
    for holder in holders:
        for key in [k for k in holder.metadata_props if k.startswith("pkg.") or k == "namespace"]:
            del holder.metadata_props[key]
    for node in (n for g in graphs for n in g):
        node.doc_string = None
