"""A copy of a model for compilers that know no symbolic dimensions and find nodes by their names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx.shape_inference

from onnxqat.deployment.base_compiler import Array
from onnxqat.graph import inference


def static_copy(path: Path, feeds: Mapping[str, Array]) -> onnx.ModelProto:
    """The model at `path` with the shapes of `feeds`, and the first output as the name of each nameless node.

    Inferred shapes are left out where any dimension was symbolic: the compiler infers them anew.

    Args:
        path: model file.
        feeds: one batch by input name.
    """
    model = onnx.load(path)
    graph = model.graph
    symbolic = False
    for value in graph.input:
        if value.name not in feeds:
            continue
        dims = value.type.tensor_type.shape.dim
        symbolic |= any(not d.HasField("dim_value") for d in dims) or len(dims) != feeds[value.name].ndim
        del dims[:]
        for size in feeds[value.name].shape:
            dims.add().dim_value = size
    if symbolic:
        del graph.value_info[:]
        for value in graph.output:
            value.type.tensor_type.ClearField("shape")
        for value, found in zip(graph.output, inference.infer_shapes(model).graph.output, strict=True):
            value.CopyFrom(found)
    taken = {node.name for node in graph.node}
    for node in graph.node:
        if not node.name:
            node.name = _fresh(node.output[0], taken)
            taken.add(node.name)
    return model


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name
