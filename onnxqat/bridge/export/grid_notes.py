"""The note of a grid at stored codes, which have no Clip: metadata of their DequantizeLinear, read and replaced in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import onnx
import onnx_ir as ir

from onnxqat.graph import qdq, walk

Notes: TypeAlias = Mapping[str, tuple[int, int]]
"""Smallest and largest code by the name of the dequantized tensor."""

_KEYS = (qdq.QUANT_MIN, qdq.QUANT_MAX)


def write_proto(proto: onnx.ModelProto, notes: Notes) -> None:
    """Replace the notes of `notes` where a node has some."""
    graphs = [proto.graph]
    nodes = [node for function in proto.functions for node in function.node]
    while graphs or nodes:
        if graphs:
            nodes.extend(graphs.pop().node)
            continue
        node = nodes.pop()
        for attribute in node.attribute:
            graphs += [attribute.g, *attribute.graphs]
        held = {entry.key: entry for entry in node.metadata_props}
        codes = notes.get(node.output[0]) if node.output and node.op_type == qdq.DEQUANTIZE else None
        if codes is not None and set(_KEYS) <= set(held):
            for key, code in zip(_KEYS, codes, strict=True):
                held[key].value = str(code)


def write_ir(model: ir.Model, notes: Notes) -> None:
    """The same for a model of onnx_ir."""
    for node in walk.nodes(model):
        codes = notes.get(str(node.outputs[0].name)) if qdq.is_dequantize(node) else None
        if codes is not None and set(_KEYS) <= set(node.metadata_props):
            node.metadata_props.update(zip(_KEYS, map(str, codes), strict=True))
