"""Models to disk: one file, or above 2 GB a graph and a file of weights that switch together."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from onnxqat.errors import ModelError
from onnxqat.graph import atomic, external, own_data, walk
from onnxqat.graph.staging import locked, staging

PROTOBUF_LIMIT = 2**31 - 2**20
_INSIDE = 1024  # bytes up to which a tensor stays in the graph, as small ones are scales and shapes that tools look for


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """`model` as a protobuf with all weights inside.

    Raises:
        ModelError: ``model-invalid`` when it does not fit into 2 GB.
    """
    proto = ir.to_proto(_inline(model))
    assert isinstance(proto, onnx.ModelProto)
    return proto


def save(model: ir.Model | onnx.ModelProto, path: str | os.PathLike[str], *, external_data: bool | None = None) -> Path:
    """Write a model; the file appears whole or not at all, and needs no other file but weights of its own.

    One file below 2 GB unless `external_data` asks otherwise; above, weights go to ``<name>.<hash>.data`` beside it,
    named by their content: renaming the graph into place switches both. The weights that `path` had before are removed
    then, unless another graph of the folder names them, or `model` still reads them.

    Args:
        model: it is not changed.
        path: file to write; its folder exists.
        external_data: weights in a file beside it; None: above 2 GB only. Of an ``onnx_ir.Model``.

    Returns:
        `path`.

    Raises:
        ModelError: ``output-not-writable``; ``model-external-data`` for a protobuf without its weights.
    """
    with staged(model, path, external_data=external_data) as put:
        put()
    return Path(path)


@contextlib.contextmanager
def staged(
    model: ir.Model | onnx.ModelProto, path: str | os.PathLike[str], *, external_data: bool | None = None
) -> Iterator[Callable[[], None]]:
    """Write a model beside `path`, and yield the function that puts it into its place; see :func:`save`.

    Raises:
        ModelError: see :func:`save`.
    """
    place = atomic.target(Path(path))
    apart = _total_bytes(model) > PROTOBUF_LIMIT if external_data is None else external_data
    read = _files_read(model, place.parent)
    if apart and isinstance(model, ir.Model):
        with _staged_pair(model, place, read) as put:
            yield put
        return
    proto = to_proto(model) if isinstance(model, ir.Model) else model
    if external.has_external_data(proto):
        raise ModelError(
            "model-external-data", "the model: its weights lie in files, and it was given in memory; pass its path"
        )
    with atomic.staged_file(place, proto.SerializeToString(deterministic=True)) as put_file:

        def put_alone() -> None:
            put_file()
            with atomic.writing(place):
                if not atomic.is_device(place) and own_data.candidates(place):
                    _remove_unused(place, read)

        yield put_alone


@contextlib.contextmanager
def _staged_pair(model: ir.Model, path: Path, read: set[str]) -> Iterator[Callable[[], None]]:
    with atomic.writing(path):
        if atomic.is_device(path):
            raise OSError(errno.EFBIG, "a model above 2 GB is two files")
        with staging(path.parent) as folder:
            graph, data = folder / "graph.onnx", folder / "data"
            ir.save(with_inline_attributes(model), graph, external_data=data.name, size_threshold_bytes=_INSIDE)
            name = _name_data(path, graph, data)
            yield lambda: _put_pair(path, graph, data, name, read)


def _name_data(path: Path, graph: Path, data: Path) -> str | None:
    """Name the data file by its content, in the staged graph too; None where all tensors are small.

    Both files are on the disk afterwards.
    """
    if not data.exists():
        atomic.sync(graph)
        return None
    name = own_data.name_for(path, data)
    proto = onnx.load(graph, load_external_data=False)
    for tensor in external.tensors(proto):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = name
    atomic.write_through(graph, proto.SerializeToString(deterministic=True))
    atomic.sync(data)
    return name


def _put_pair(path: Path, graph: Path, data: Path, name: str | None, read: set[str]) -> None:
    """Weights first, under a name that no graph has yet, then the graph that names them."""
    with locked(path.parent) as alone:
        if name is not None:
            atomic.put(data, path.parent / name)
        atomic.put(graph, path)
        if alone:
            own_data.remove_unused(path, {*read, *([name] if name is not None else [])})


def _remove_unused(path: Path, read: set[str]) -> None:
    with locked(path.parent) as alone:
        if alone:
            own_data.remove_unused(path, read)


def _files_read(model: ir.Model | onnx.ModelProto, folder: Path) -> set[str]:
    """Names of the files in `folder` that tensors of `model` lie in, to be read when they are asked for."""
    if isinstance(model, onnx.ModelProto):
        return set()
    held = (v.const_value for graph in model.graphs() for v in graph.initializers.values())
    tensors = [t for t in held if isinstance(t, ir.ExternalTensor)]
    tensors += [attribute.value for _, attribute in _external_attributes(model)]
    place = os.path.realpath(folder)
    paths = {Path(os.path.realpath(tensor.path)) for tensor in tensors}
    return {path.name for path in paths if str(path.parent) == place}


def _total_bytes(model: ir.Model | onnx.ModelProto) -> int:
    if isinstance(model, onnx.ModelProto):
        return int(model.ByteSize())
    tensors = (v.const_value for graph in model.graphs() for v in graph.initializers.values())
    return sum(t.nbytes for t in tensors if t is not None)


def _inline(model: ir.Model) -> ir.Model:
    """`model`, or a copy with all weights in memory where some lie in files."""
    tensors = (v.const_value for graph in model.graphs() for v in graph.initializers.values())
    if not any(isinstance(tensor, ir.ExternalTensor) for tensor in tensors):
        return with_inline_attributes(model)
    return ir.external_data.load_to_model(with_inline_attributes(model).clone())


def with_inline_attributes(model: ir.Model) -> ir.Model:
    """`model`, or a copy in which the tensors of attributes, such as those of Constant, are in memory.

    onnx_ir moves initializers alone: a tensor of a Constant would go on naming a file in another folder.
    """
    if not any(True for _ in _external_attributes(model)):
        return model
    copy = model.clone()
    for node, attribute in list(_external_attributes(copy)):
        (tensor,) = ir.external_data.convert_tensors_from_external([attribute.value])
        node.attributes[attribute.name] = ir.AttrTensor(attribute.name, tensor)
    return copy


def _external_attributes(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Attr]]:
    for node in walk.nodes(model):
        for attribute in node.attributes.data.values():  # the dict inside: every session asks for all of them
            if isinstance(attribute.value, ir.ExternalTensor):
                yield node, attribute
