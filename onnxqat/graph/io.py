"""Models in and out: path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph, and back to the kind given.

Models come from strangers: a file is checked before anything is read from the locations that it names.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import onnx
import onnx.defs
import onnx_ir as ir

from onnxqat import discover
from onnxqat.errors import ModelError
from onnxqat.graph import calls, files_read, graphsurgeon, inference, omitted, order, query, stated, text
from onnxqat.graph.atomic import check_writable, write_atomic
from onnxqat.graph.bundles import outside
from onnxqat.graph.external import check_external_data, check_held, has_external_data, needed_bytes, tensors
from onnxqat.graph.saving import PROTOBUF_LIMIT, save, to_proto

if TYPE_CHECKING:
    import onnx_graphsurgeon as gs

__all__ = [
    "ModelSource",
    "ModelT",
    "check_writable",
    "copy",
    "give_back",
    "like",
    "load",
    "name_of",
    "read_proto",
    "save",
    "to_proto",
    "write_atomic",
]


class GsGraph(Protocol):
    """An onnx_graphsurgeon.Graph for type checkers: that package states no types, and Any would stand for every kind."""

    nodes: Any
    opset: int

    def toposort(self, recurse_subgraphs: bool = ..., recurse_functions: bool = ..., mode: str = ...) -> Any:
        """Sort the nodes."""


ModelSource: TypeAlias = "str | os.PathLike[str] | onnx.ModelProto | ir.Model | gs.Graph"
ModelT = TypeVar("ModelT", onnx.ModelProto, ir.Model, GsGraph)
"""A model in memory, of which the same kind comes back.

Overloads state it before that of a path: protobuf states no types either, so that a ModelProto may be a path as well.
"""

IR_WITH_OWN_INITIALIZERS = 4  # before, an initializer had to be a graph input as well
OF_OPSET = "Unrecognized attribute|No Op registered|has input size|has output size"  # what the checker says
ONNX_DOMAINS = ("", "ai.onnx")
# How files begin that are taken for ONNX models; a model begins with the field of its IR version.
_OTHER_FILES = (
    (b"version https://git-lfs", "a pointer of Git LFS", "fetch the file itself: git lfs pull"),
    (
        b"PK",
        "a zip archive, as torch.save and numpy.savez write",
        "make an ONNX file of a torch module: onnxqat export",
    ),
    (b"\x80", "a Python pickle, as older versions of torch.save write", "make an ONNX file of it: onnxqat export"),
    (b"\x89HDF", "an HDF5 file, as Keras writes", "convert it to ONNX first, with tf2onnx for example"),
    (b"\x89PNG", "an image", "the model comes before the data"),
)
RUNTIME_DOMAIN = "onnxruntime"  # where the checker, which knows no operators of it, does not look


def load(source: ModelSource) -> ir.Model:
    """A private model that the caller's object does not see changes of; optional inputs that are left out at the end are gone.

    Args:
        source: path of an ONNX file, or a model in memory. Weights in external files stay memory-mapped.

    Raises:
        ModelError: ``model-not-found``, ``model-empty``, ``model-not-onnx``, ``model-invalid``,
            ``model-external-data`` (a location outside the model's folder, or not in the file's bounds),
            ``model-sparse-initializer``.
    """
    return omitted.drop(_load(source))


def _load(source: ModelSource) -> ir.Model:
    """Load a private copy of whatever kind of model is given, checked."""
    if isinstance(source, ir.Model):
        if not all(map(order.is_sorted, source.graphs())):
            raise ModelError(
                "model-invalid", "the model: its nodes are out of order", hint="call model.graph.sort() first"
            )
        check_held(source)
        return _without_shadowed(source.clone())
    if isinstance(source, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(source)
        return _from_proto(copy, "the model", None)
    if isinstance(source, (str, os.PathLike)):
        return _load_file(Path(source))
    if graphsurgeon.is_graph(source):
        return graphsurgeon.from_gs(source)
    raise ModelError(
        "model-not-onnx",
        f"cannot read a model from {type(source).__name__}",
        hint="pass a path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph",
    )


def _load_file(path: Path) -> ir.Model:
    try:
        return _from_proto(read_proto(path), str(path), path)
    except ModelError as error:
        if error.code != "model-external-data":
            raise
    # Once more: another process may have replaced graph and weights after the graph was read.
    return _from_proto(read_proto(path), str(path), path)


def read_proto(path: Path) -> onnx.ModelProto:
    """Parse the file at `path` without loading external data.

    Raises:
        ModelError: ``model-not-found``, ``model-empty``, ``model-not-onnx``.
    """
    if not path.exists():
        raise ModelError("model-not-found", f"{path}: no such file", hint=_models_in(path.parent, path.name))
    if path.is_dir():
        raise ModelError("model-not-found", f"{path} is a folder, not an ONNX file", hint=_models_in(path))
    try:
        files_read.note(path, "the model")
        content = path.read_bytes()
    except OSError as error:
        raise ModelError("model-not-found", f"{path}: cannot be read: {error.strerror}") from None
    if not content:
        raise ModelError("model-empty", f"{path}: the file is empty", hint="download or export it again")
    for start, kind, remedy in _OTHER_FILES:
        if content.startswith(start):
            raise ModelError("model-not-onnx", f"{path}: this is {kind}, not an ONNX file", hint=remedy)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except Exception as error:  # protobuf's own DecodeError, whose module differs between its implementations
        if "alloc failed" in str(error):
            raise MemoryError(f"{path}: {error}") from None
        raise ModelError(
            "model-not-onnx", f"{path}: not an ONNX file, or damaged", hint="download or export it again"
        ) from None
    return proto


def _models_in(folder: Path, name: str = "") -> str:
    """Hint for a `name` that is no file in `folder`: the closest name, or the models that exist."""
    if not folder.is_dir():
        return f"there is no folder {folder}"
    found = sorted(str(path) for path in folder.glob("*.onnx"))
    return discover.suggestion(str(folder / name), found) or f"{folder.resolve()} holds no .onnx file"


def _from_proto(proto: onnx.ModelProto, name: str, path: Path | None) -> ir.Model:
    text.check(proto, name)
    calls.check(proto, name)
    stated.join(proto)
    _put_in_order(proto, name)
    _check_proto(proto, name, path)
    try:
        model = ir.from_proto(proto)
    except Exception as error:
        raise ModelError("model-invalid", f"{name}: {_first_line(error)}") from None
    if not isinstance(model, ir.Model):
        raise ModelError("model-not-onnx", f"{name}: holds no model")
    if path is not None:
        for graph in model.graphs():
            ir.external_data.set_base_dir(graph, path.parent)
    return _without_shadowed(stated.correct(model))


def _without_shadowed(model: ir.Model) -> ir.Model:
    """Take functions with the name of an ONNX operator of the imported opset out of `model`.

    ONNX leaves to runtimes which of the two is meant, and onnxruntime takes the operator.
    """
    for domain, op_type, overload in list(model.functions):
        version = model.opset_imports.get(domain)
        if not overload and version is not None and onnx.defs.has(op_type, version, domain):
            del model.functions[domain, op_type, overload]
    return model


def _put_in_order(proto: onnx.ModelProto, name: str) -> None:
    """Sort the main graph, as onnxruntime does; refuse other graphs that are out of order, as it does too."""
    if order.early_read(proto.graph.node) is not None:
        nodes = order.sort(proto.graph.node)
        if nodes is None:
            node, value = order.early_read(proto.graph.node) or (onnx.NodeProto(), "")
            raise ModelError("model-invalid", f"{name}: nodes form a cycle; {_title(node)} is in it or reads {value!r}")
        ordered = onnx.GraphProto()
        ordered.node.extend(nodes)
        del proto.graph.node[:]
        proto.graph.node.extend(ordered.node)
    inner = [graph.node for graph in _graph_protos(proto)][1:] + [function.node for function in proto.functions]
    for early in filter(None, map(order.early_read, inner)):
        raise ModelError(
            "model-invalid",
            f"{name}: {_title(early[0])} reads {early[1]!r} before a later node of the same body makes it",
            hint="sort the nodes: onnx_ir.load, then model.graph.sort() and onnx_ir.save; onnxruntime refuses the file too",
        )


def _title(node: onnx.NodeProto) -> str:
    made = ", ".join(map(repr, node.output))
    return f"node {node.name!r} ({node.op_type})" if node.name else f"the {node.op_type} that makes {made}"


def _refuse_maps(graph: onnx.GraphProto, name: str) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info):
        if _is_map(value.type):
            raise ModelError(
                "model-invalid",
                f"{name}: {value.name!r} is a map from classes to numbers, and only tensors are supported",
                hint="export it without: skl2onnx.convert_sklearn(..., options={'zipmap': False}) gives a tensor",
            )


def _is_map(kind: onnx.TypeProto) -> bool:
    """Check whether a value is a map, or a sequence or optional of maps, as ai.onnx.ml.ZipMap makes."""
    inner = kind.WhichOneof("value")
    if inner in ("sequence_type", "optional_type"):
        return _is_map(getattr(kind, inner).elem_type)
    return bool(inner == "map_type")


def _check_proto(proto: onnx.ModelProto, name: str, path: Path | None) -> None:
    """Refuse what onnxruntime would refuse or read in another way, each with an error that names the place."""
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise ModelError("model-not-onnx", f"{name}: there is no graph in it", hint="is this really an ONNX model?")
    if not proto.graph.output:
        raise ModelError("model-invalid", f"{name}: it has no outputs", hint="export it again, with what it computes")
    declared: dict[str, int] = {}
    for output in proto.graph.output:
        kind = output.type.tensor_type.elem_type
        # onnxruntime takes the last of two declarations for both, and gives back bytes of the other type
        if declared.setdefault(output.name, kind) != kind:
            first, second = (onnx.TensorProto.DataType.Name(t).lower() for t in (declared[output.name], kind))
            raise ModelError(
                "model-invalid",
                f"{name}: output {output.name!r} is declared twice, as {first} and as {second}",
                hint="leave one of the two in `graph.output`",
            )
    if not proto.opset_import:
        raise ModelError("model-invalid", f"{name}: it imports no operator set")
    versions = sorted({o.version for o in proto.opset_import if o.domain in ONNX_DOMAINS})
    if len(versions) > 1:
        raise ModelError(
            "model-invalid",
            f"{name}: it imports ONNX's operators twice, of versions {versions[0]} and {versions[1]}",
            hint="runtimes take either of them: leave the one that it was exported with in `opset_import`",
        )
    for graph in _graph_protos(proto):
        _refuse_maps(graph, name)
        if graph.sparse_initializer:
            raise ModelError(
                "model-sparse-initializer",
                f"{name}: sparse initializer {graph.sparse_initializer[0].values.name!r} is not supported",
                hint="store it as a dense initializer",
            )
        for node in graph.node:
            if any(attribute.HasField("sparse_tensor") for attribute in node.attribute):
                raise ModelError(
                    "model-sparse-initializer",
                    f"{name}: the sparse tensor of {_title(node)} is not supported",
                    hint="store it as a dense tensor",
                )
    known = {int(t) for t in ir.DataType}
    for tensor in tensors(proto):
        if tensor.data_type not in known or min(tensor.dims, default=0) < 0:
            raise ModelError("model-invalid", f"{name}: tensor {tensor.name!r} has an unknown type or a negative size")
        if tensor.HasField("raw_data") and len(tensor.raw_data) != needed_bytes(tensor):
            raise ModelError(
                "model-invalid",
                f"{name}: tensor {tensor.name!r} of shape {tuple(tensor.dims)} holds {len(tensor.raw_data)} bytes, "
                f"not {needed_bytes(tensor)}",
                hint="export it again; onnxruntime refuses the file too",
            )
    check_external_data(proto, name, path.parent if path is not None else None)
    if has_external_data(proto) or proto.ByteSize() > PROTOBUF_LIMIT:
        return
    try:
        _check_with_onnx(proto)
    except Exception as error:
        place = re.search(r"Bad node spec for node. Name: (\S+)", str(error))
        where = f"node {place[1]!r}: " if place is not None else ""
        hint = _other_opset(proto) if re.search(OF_OPSET, str(error)) else ""
        raise ModelError("model-invalid", f"{name}: {where}{_first_line(error)}", hint=hint) from None


def _other_opset(proto: onnx.ModelProto) -> str:
    """The opset, if there is one, whose operators the model has, other than the one that it imports."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    imported = next((o for o in copy.opset_import if o.domain in ONNX_DOMAINS), None)
    stated = 0 if imported is None else imported.version
    for version in (*range(stated + 1, onnx.defs.onnx_opset_version() + 1), *range(stated - 1, 0, -1)):
        if imported is not None and imported.version > 0:
            imported.version = version
            with contextlib.suppress(Exception):  # the checker's errors have no common base class
                _check_with_onnx(copy)
                return (
                    f"the file says opset {stated}, but its operators are those of opset {version}, and runtimes refuse "
                    f"it too: export it again with opset {version}, or correct `opset_import`"
                )
    return ""


def _check_with_onnx(proto: onnx.ModelProto) -> None:
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError:
        onnx.checker.check_model(_relaxed(proto))


def _relaxed(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy without the parts that the checker refuses and runtimes accept.

    That is: inputs and outputs without a shape, omitted outputs, initializers that IR version 3 wants among the inputs,
    the long name of ONNX's domain, operators of a later opset, and those that are deprecated and still defined.
    """
    try:
        relaxed = inference.infer_shapes(proto)
    except onnx.shape_inference.InferenceError:
        relaxed = onnx.ModelProto()
        relaxed.CopyFrom(proto)
    relaxed.ir_version = max(relaxed.ir_version, IR_WITH_OWN_INITIALIZERS)
    for value in (*relaxed.graph.input, *relaxed.graph.output):
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.shape.SetInParent()
    opset = next((o.version for o in relaxed.opset_import if o.domain in ONNX_DOMAINS), 1)
    for number, node in enumerate(n for graph in _graph_protos(relaxed) for n in graph.node):
        for index, name in enumerate(node.output):
            node.output[index] = name or f"__omitted_{number}_{index}"
        if node.domain in ONNX_DOMAINS:
            node.domain = RUNTIME_DOMAIN if _is_unchecked(node.op_type, opset) else ""
    relaxed.opset_import.add(domain=RUNTIME_DOMAIN, version=1)
    return relaxed


def _is_unchecked(op_type: str, opset: int) -> bool:
    """Check whether runtimes accept an operator that `opset` lacks or has deprecated."""
    try:
        return bool(onnx.defs.get_schema(op_type, opset, "").deprecated)
    except onnx.defs.SchemaError:
        return op_type in query.BEYOND_OPSET


def _graph_protos(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    pending = [proto.graph]
    bodies = [node for function in proto.functions for node in function.node]
    while pending or bodies:
        if pending:
            graph = pending.pop()
            yield graph
            bodies.extend(graph.node)
        else:
            for attribute in bodies.pop().attribute:
                if attribute.HasField("g"):
                    pending.append(attribute.g)
                pending.extend(attribute.graphs)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def name_of(source: ModelSource) -> str:
    """Name of a model in messages: its path, or ``the model``."""
    return os.fspath(source) if isinstance(source, (str, os.PathLike)) else "the model"


def give_back(
    source: ModelSource, model: ir.Model, output: str | os.PathLike[str] | None, suffix: str | None = None
) -> Any:
    """Write `model` to `output`, and return it as the kind that `source` is; for a path, the path of the file.

    Args:
        source: what the caller was given.
        model: what became of it.
        output: file to write, if any.
        suffix: of the file beside the path `source` that is written where `output` is None.
    """
    if output is None and suffix is not None and isinstance(source, (str, os.PathLike)):
        output = outside(source).with_suffix(suffix)
    written = save(model, output) if output is not None else None
    return written if isinstance(source, (str, os.PathLike)) else like(source, model)


def like(source: ModelSource, model: ir.Model) -> Any:
    """`model` as the kind that `source` is; a path gives onnx_ir.Model, since no output path is known."""
    if isinstance(source, onnx.ModelProto):
        return to_proto(model)
    if isinstance(source, (ir.Model, str, os.PathLike)):
        return model
    return graphsurgeon.to_gs(model)


def copy(source: Path, path: Path) -> Path:
    """Write the model in the file `source` once more, with weights of its own; the same bytes where it is one file.

    Raises:
        ModelError: as of :func:`load` and :func:`onnxqat.graph.saving.save`.
    """
    if has_external_data(read_proto(source)):
        return save(load(source), path)
    write_atomic(path, source.read_bytes())
    return path
