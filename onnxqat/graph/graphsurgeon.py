"""onnx_graphsurgeon graphs in and out.

Reading goes straight from the graphsurgeon objects to onnx_ir, not through ``gs.export_onnx``: that cannot write 4-bit
constants and turns some float8 types into others. Weights that nobody touched stay the protobuf tensors that they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxqat.errors import ModelError
from onnxqat.graph import build, query, saving, walk

if TYPE_CHECKING:
    import onnx_graphsurgeon as gs

OLDEST_IR = 10
LOST_ATTRIBUTES = {
    onnx.AttributeProto.GRAPHS: "a list of graphs",
    onnx.AttributeProto.TENSORS: "a list of tensors",
    onnx.AttributeProto.SPARSE_TENSOR: "a sparse tensor",
    onnx.AttributeProto.SPARSE_TENSORS: "sparse tensors",
    onnx.AttributeProto.TYPE_PROTO: "a type",
    onnx.AttributeProto.TYPE_PROTOS: "types",
}


def is_graph(obj: object) -> bool:
    """Check whether `obj` is an onnx_graphsurgeon Graph, without importing the package for other objects."""
    if not any(c.__module__.partition(".")[0] == "onnx_graphsurgeon" for c in type(obj).__mro__):
        return False
    import onnx_graphsurgeon

    return isinstance(obj, onnx_graphsurgeon.Graph)


def from_gs(graph: gs.Graph) -> ir.Model:
    """The model that `graph` describes; `graph` is not changed.

    Tensors are resolved by name, inner scopes before outer ones, as ``gs.export_onnx`` does; nodes in an order that
    does not run are sorted. Constants of functions become Constant nodes.

    Raises:
        ModelError: ``model-graphsurgeon`` where a tensor is read and never made, or an attribute cannot be written;
            ``model-sparse-initializer``; ``model-external-data`` for weights that were left in their file.
    """
    functions = [_function(f) for f in graph.functions]
    imports = _imports(graph)
    body = _Reader(None, imports).graph(graph)
    body.opset_imports.update(imports)
    versions = [onnx.helper.make_opsetid(d, v) for d, v in imports.items() if d in ("", "ai.onnx")]
    lowest = max(OLDEST_IR, onnx.helper.find_min_ir_version_for(versions, ignore_unknown=True))
    return ir.Model(
        body,
        ir_version=int(graph.ir_version or lowest),
        producer_name=graph.producer_name or None,
        producer_version=graph.producer_version or None,
        functions=functions,
    )


def to_gs(model: ir.Model) -> gs.Graph:
    """`model` as a graphsurgeon graph.

    graphsurgeon has no place for metadata, doc strings of nodes, dimension denotations and defaults of graph inputs;
    they are lost, and :class:`onnxqat.passes._graphsurgeon.GsPass` puts the metadata back. What it would lose and
    what the model needs to run is refused.

    Raises:
        ModelError: ``model-graphsurgeon``, naming everything that graphsurgeon cannot hold.
    """
    proto = saving.to_proto(model)
    lost = list(_lost(proto))
    if lost:
        raise ModelError(
            "model-graphsurgeon",
            f"onnx_graphsurgeon cannot hold {'; '.join(lost[:5])}{' and more' if len(lost) > 5 else ''}",
            hint="use onnx_ir.Model or onnx.ModelProto for this model",
        )
    import onnx_graphsurgeon

    return onnx_graphsurgeon.import_onnx(proto)


def _imports(graph: gs.Graph) -> dict[str, int]:
    found = {"": int(graph.opset)} if graph.opset else {}
    for entry in graph.import_domains or ():
        found["" if entry.domain == "ai.onnx" else entry.domain] = int(entry.version)
    if graph.opset:
        found[""] = int(graph.opset)
    for inner in (graph, *graph.subgraphs(recursive=True)):
        for node in inner.nodes:
            found.setdefault(node.domain or "", 1)
    return found


def _function(function: gs.Function) -> ir.Function:
    imports = _imports(function)
    body = _Reader(None, imports, constants_as_nodes=True).graph(function)
    body.opset_imports.update(imports)
    attributes = [
        ir.Attr(name, ir.AttributeType.UNDEFINED, None)
        if value is None
        else _attribute(name, value, _Reader(None, imports), None)
        for name, value in function.attrs.items()
    ]
    return ir.Function(function.domain or "", function.name, graph=body, attributes=attributes)


class _Reader:
    """One graph: its values by name, and the reader of the graph around it."""

    def __init__(self, outer: _Reader | None, imports: Mapping[str, int], *, constants_as_nodes: bool = False) -> None:
        self.outer, self.imports, self.constants_as_nodes = outer, imports, constants_as_nodes
        self.values: dict[str, ir.Value] = {}
        self.constants: list[ir.Value] = []

    def graph(self, graph: gs.Graph) -> ir.Graph:
        inputs = [self._define(t) for t in graph.inputs]
        outputs = [[self._define(t) for t in node.outputs] for node in graph.nodes]
        for node in graph.nodes:  # before the subgraphs, so that what both read is defined out here
            for tensor in node.inputs:
                if getattr(tensor, "_values", None) is not None:
                    self._find(tensor)
        nodes = [self._node(node, made) for node, made in zip(graph.nodes, outputs, strict=True)]
        results = [self._find(t) for t in graph.outputs]
        initializers = self.constants
        if self.constants_as_nodes:
            nodes, initializers = [*map(_constant_node, self.constants), *nodes], []
        made = ir.Graph(
            inputs,
            [r for r in results if r is not None],
            nodes=nodes,
            initializers=initializers,
            doc_string=graph.doc_string or None,
            name=graph.name,
        )
        if not _is_sorted(made):
            made.sort()
        return made

    def _define(self, tensor: gs.Tensor) -> ir.Value:
        if tensor.is_empty():
            return ir.Value(name="")
        if tensor.name in self.values:
            raise ModelError("model-graphsurgeon", f"two tensors are called {tensor.name!r}")
        self.values[tensor.name] = ir.Value(name=tensor.name, type=_type(tensor), shape=_shape(tensor))
        return self.values[tensor.name]

    def _find(self, tensor: gs.Tensor) -> ir.Value | None:
        if tensor.is_empty():
            return None
        found = self.lookup(tensor.name)
        if found is not None:
            return found
        values = getattr(tensor, "_values", None)
        if values is None:
            raise ModelError("model-graphsurgeon", f"tensor {tensor.name!r} is read and never made")
        data = _tensor(tensor, values)
        value = ir.Value(
            name=tensor.name, type=ir.TensorType(data.dtype), shape=ir.Shape(data.shape.numpy()), const_value=data
        )
        self.values[tensor.name] = value
        self.constants.append(value)
        return value

    def lookup(self, name: str) -> ir.Value | None:
        """The value called `name` in this graph or one around it."""
        reader: _Reader | None = self
        while reader is not None:
            if name in reader.values:
                return reader.values[name]
            reader = reader.outer
        return None

    def _node(self, node: gs.Node, outputs: list[ir.Value]) -> ir.Node:
        return ir.Node(
            node.domain or "",
            node.op,
            [self._find(t) for t in node.inputs],
            [_attribute(name, value, self, node) for name, value in node.attrs.items()],
            outputs=outputs,
            name=node.name or "",  # None would get a made-up name
        )


def _constant_node(value: ir.Value) -> ir.Node:
    data, value.const_value = value.const_value, None
    assert data is not None
    return ir.Node("", "Constant", [], [ir.AttrTensor("value", data)], outputs=[value], name=value.name)


def _is_sorted(graph: ir.Graph) -> bool:
    places = {id(node): place for place, node in enumerate(graph)}
    for node in graph:
        for reader in (node, *_inner_nodes(node)):
            for value in reader.inputs:
                producer = query.producer(value)
                if producer is not None and places.get(id(producer), -1) >= places[id(node)]:
                    return False
    return True


def _inner_nodes(node: ir.Node) -> Iterator[ir.Node]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            yield from attribute.as_graph().all_nodes()


def _dtype(dtype: Any) -> ir.DataType:
    return ir.DataType(dtype) if isinstance(dtype, int) else ir.DataType.from_numpy(np.dtype(dtype))


def _type(tensor: gs.Tensor) -> ir.TypeProtocol | None:
    if tensor.dtype is None:
        return None
    kind = getattr(tensor, "type", "tensor_type")
    element = ir.TensorType(_dtype(tensor.dtype))
    if kind in ("tensor_type", None):
        return element
    if kind == "sequence_type":
        return ir.SequenceType(element)
    raise ModelError("model-graphsurgeon", f"tensor {tensor.name!r} has the type {kind}, which is not supported")


def _shape(tensor: gs.Tensor) -> ir.Shape | None:
    return None if tensor.shape is None else ir.Shape(list(tensor.shape))


def _tensor(tensor: gs.Constant, values: Any) -> ir.TensorProtocol:
    if isinstance(values, np.ndarray):
        return build.tensor(values, _dtype(tensor.export_dtype), tensor.name)
    if isinstance(values.tensor, onnx.SparseTensorProto):
        raise ModelError(
            "model-sparse-initializer",
            f"sparse initializer {tensor.name!r} is not supported",
            hint="store it as a dense initializer",
        )
    if values.tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise ModelError(
            "model-external-data",
            f"the data of {tensor.name!r} was left in its file",
            hint="load the model with its external data before gs.import_onnx, or pass its path",
        )
    proto = onnx.TensorProto()
    proto.CopyFrom(values.tensor)
    if tensor.name:
        proto.name = tensor.name
    return ir.serde.deserialize_tensor(proto)


def _attribute(name: str, value: Any, reader: _Reader, node: gs.Node | None) -> ir.Attr:
    import onnx_graphsurgeon as gs

    if isinstance(value, gs.Graph):
        return ir.AttrGraph(name, _Reader(reader, reader.imports).graph(value))
    if isinstance(value, gs.Constant):
        return ir.AttrTensor(name, _tensor(value, value._values))  # noqa: SLF001 - reading .values would load it
    if isinstance(value, gs.Node.AttributeRef):
        return ir.RefAttr(name, value.name, _reference_type(value.type))
    if isinstance(value, (type, np.dtype)):
        value = int(_dtype(value))
    try:
        empty = isinstance(value, (list, tuple)) and not value
        kind = _schema_type(name, reader, node) if empty else None
        return ir.serde.deserialize_attribute(onnx.helper.make_attribute(name, value, attr_type=kind))
    except (TypeError, ValueError) as error:
        where = f"attribute {name} of {node.name or node.op!r}" if node is not None else f"attribute {name}"
        raise ModelError("model-graphsurgeon", f"{where} cannot be written to ONNX: {error}") from None


def _schema_type(name: str, reader: _Reader, node: gs.Node | None) -> int | None:
    if node is None:
        return None
    domain = node.domain or ""
    try:
        schema = onnx.defs.get_schema(node.op, reader.imports.get(domain, 1), domain)
    except onnx.defs.SchemaError:
        return None
    if name not in schema.attributes:
        return None
    return int(onnx.AttributeProto.AttributeType.Value(schema.attributes[name].type.name))  # type: ignore[attr-defined]


def _reference_type(kind: Any) -> ir.AttributeType:
    from onnx_graphsurgeon.util import misc

    return ir.AttributeType(int(misc.convert_to_onnx_attr_type(kind)))


def _lost(proto: onnx.ModelProto) -> Iterator[str]:
    for value in (*proto.graph.input, *proto.graph.output):
        if value.type.HasField("optional_type") or value.type.HasField("sparse_tensor_type"):
            yield f"the type of {value.name!r} (optional or sparse)"
    for function in proto.functions:
        if function.overload:
            yield f"overload {function.overload!r} of function {function.name!r}"
    pending: list[Iterable[onnx.NodeProto]] = [proto.graph.node, *(f.node for f in proto.functions)]
    while pending:
        for node in pending.pop():
            if node.overload:
                yield f"overload {node.overload!r} of node {node.name!r}"
            for attribute in node.attribute:
                if attribute.type in LOST_ATTRIBUTES:
                    yield f"{LOST_ATTRIBUTES[attribute.type]} in attribute {attribute.name!r} of node {node.name!r}"
                elif not all(map(_is_text, (attribute.s, *attribute.strings))):
                    yield f"bytes that are no text in attribute {attribute.name!r} of node {node.name!r}"
                if attribute.HasField("g"):
                    pending.append(attribute.g.node)


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def restore_metadata(source: ir.Model, target: ir.Model) -> None:
    """Give `target` what `source` notes on the model, and on values and nodes whose output names are the same.

    Metadata, doc strings, and the types of values that graphsurgeon does not keep in functions.
    """
    target.metadata_props.update(source.metadata_props)
    target.domain, target.model_version = source.domain, source.model_version
    target.doc_string = source.doc_string
    target.graph.metadata_props.update(source.graph.metadata_props)
    values = {v.name: v for s in walk.scopes(source) for v in walk.values(s) if v.name}
    for scope in walk.scopes(target):
        for value in walk.values(scope):
            known = values.get(str(value.name))
            if known is not None:
                _copy_notes(known, value)
        for node in scope:
            twin = next((values[str(v.name)].producer() for v in node.outputs if v.name in values), None)
            if twin is not None and (twin.domain, twin.op_type) == (node.domain, node.op_type):
                node.metadata_props.update(twin.metadata_props)
                node.doc_string = twin.doc_string


def _copy_notes(source: ir.Value, target: ir.Value) -> None:
    target.metadata_props.update(source.metadata_props)
    target.meta.update(source.meta)
    target.doc_string = source.doc_string
    if target.type is None:
        target.type = source.type
    if target.shape is None and source.shape is not None:
        target.shape = source.shape.copy()
