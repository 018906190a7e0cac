"""External data of untrusted models: a location must lie in the model's folder and inside the file's bounds."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from onnxqat.errors import ModelError
from onnxqat.graph import files_read, walk


def tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of a model: initializers, attributes of nodes, subgraphs and functions."""
    graphs, nodes = [proto.graph], [n for f in proto.functions for n in f.node]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            yield from graph.initializer
            nodes.extend(graph.node)
            continue
        for attribute in nodes.pop().attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("g"):
                graphs.append(attribute.g)
            graphs.extend(attribute.graphs)


def has_external_data(proto: onnx.ModelProto) -> bool:
    """Check whether any tensor has its data outside the protobuf."""
    return any(t.data_location == onnx.TensorProto.EXTERNAL for t in tensors(proto))


def bytes_outside(proto: onnx.ModelProto) -> int:
    """Size of all data that lie outside the protobuf."""
    return sum(needed_bytes(t) for t in tensors(proto) if t.data_location == onnx.TensorProto.EXTERNAL)


def check_external_data(proto: onnx.ModelProto, name: str, folder: Path | None) -> None:
    """Refuse external data that leaves `folder` or does not fit its file.

    Args:
        proto: the model.
        name: how messages call it.
        folder: the model's folder; None for a model in memory, whose external data cannot be found.

    Raises:
        ModelError: ``model-external-data``.
    """
    for tensor in tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _check_tensor(tensor, name, folder)


def _check_tensor(tensor: onnx.TensorProto, name: str, folder: Path | None) -> None:
    """Refuse external data outside the model's folder, behind links, or of another size than shape and type take."""

    def refuse(reason: str) -> ModelError:
        return ModelError(
            "model-external-data",
            f"{name}: external data of tensor {tensor.name!r} {reason}",
            hint="only regular files inside the model's own folder are read",
        )

    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise refuse("cannot be found, since the model was given in memory; pass its path")
    if not location or "\0" in location or os.path.isabs(location) or ":" in location or "\\" in location:
        raise refuse(f"has the location {location[:80]!r}")
    root, target = Path(os.path.realpath(folder)), Path(os.path.realpath(folder / location))
    if root not in target.parents or _has_symlink(folder, location):
        raise refuse(f"lies outside the model's folder: {location[:80]!r}")
    if not target.is_file():
        raise refuse(f"is missing: {location[:80]!r}")
    files_read.note(target, "the model's external data")
    stat = target.stat()
    if stat.st_nlink > 1:
        raise refuse(f"is a hard link: {location[:80]!r}")
    offset, length = _integer(entries.get("offset", "0")), _integer(entries.get("length", "-1"))
    if offset is None or length is None or offset < 0:
        raise refuse("has a malformed offset or length")
    if length != -1 and tensor.data_type != ir.DataType.STRING and length != needed_bytes(tensor):
        raise refuse(f"has {length} bytes, and its shape and type take {needed_bytes(tensor)}")
    length = stat.st_size - offset if length == -1 else length
    if length < 0 or offset + length > stat.st_size or length < needed_bytes(tensor):
        raise refuse(f"does not fit its file: bytes {offset} to {offset + length} of {stat.st_size}")


def check_held(model: ir.Model) -> None:
    """Refuse a model in memory whose weights lie in files that are gone: they are read when they are needed.

    Raises:
        ModelError: ``model-external-data``.
    """
    for path in external_files(model):
        if not path.is_file():
            raise ModelError(
                "model-external-data",
                f"the model: its weights lie in {path}, which is no file any more",
                hint="load the model again, and leave its files until the work is done",
            )
        files_read.note(path, "the model's external data")


def external_files(model: ir.Model) -> tuple[Path, ...]:
    """Files of external data of `model`, each once, by name."""
    return tuple(sorted({Path(tensor.path) for tensor in _external(model)}))


def _external(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value.const_value
    for node in walk.nodes(model):
        for attribute in node.attributes.values():
            if isinstance(attribute.value, ir.ExternalTensor):
                yield attribute.value


def state_length(tensor: onnx.TensorProto) -> None:
    """Write the length of external data that state none, which onnx takes for the rest of the file, not for its own."""
    if all(entry.key != "length" for entry in tensor.external_data):
        tensor.external_data.add(key="length", value=str(needed_bytes(tensor)))


def needed_bytes(tensor: onnx.TensorProto) -> int:
    """Size of the values by type and dimensions; several of fewer than 8 bits share a byte, and text has none."""
    if tensor.data_type in (ir.DataType.UNDEFINED, ir.DataType.STRING):
        return 0
    return int(math.prod(tensor.dims) * ir.DataType(tensor.data_type).bitwidth + 7) // 8


def _has_symlink(folder: Path, location: str) -> bool:
    path = folder
    for part in Path(location).parts:
        path = path / part
        if path.is_symlink():
            return True
    return False


def _integer(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
