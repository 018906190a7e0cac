"""A Cast beside an input or output of the model, which has another type outside than inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxqat.graph import build, edit


def read_through_cast(
    graph: ir.Graph,
    value: ir.Value,
    readers: Sequence[tuple[ir.Node, int]],
    names: build.Names,
    stamp: Mapping[str, str],
) -> ir.Value:
    """Let `readers` of the graph input `value` read ``<input>_float32``, which a Cast makes; that value."""
    made = _cast(value, names.fresh(f"{value.name}_float32"), ir.DataType.FLOAT, names, stamp)
    graph.insert_before(graph[0], made)
    edit.rewire(readers, made.outputs[0])
    return made.outputs[0]


def made_by_cast(
    graph: ir.Graph, value: ir.Value, kind: ir.DataType, names: build.Names, stamp: Mapping[str, str]
) -> ir.Node:
    """Let a Cast to `kind` make the graph output that `value` was; it has its name, `value` is ``<output>_float32`` now."""
    name = str(value.name)
    value.name = names.fresh(f"{name}_float32")
    cast = _cast(value, name, kind, names, stamp)
    made = cast.outputs[0]
    made.doc_string, value.doc_string = value.doc_string, None
    made.metadata_props.update(value.metadata_props)
    value.metadata_props.clear()
    edit.replace_output(graph, value, made)
    graph.append(cast)
    return cast


def _cast(value: ir.Value, output: str, kind: ir.DataType, names: build.Names, stamp: Mapping[str, str]) -> ir.Node:
    name = names.fresh(f"{output}_Cast")
    return build.node(
        "Cast", [value], [output], {"to": int(kind)}, dtype=kind, shape=value.shape, name=name, stamp=stamp
    )
