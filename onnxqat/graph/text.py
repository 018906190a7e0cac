"""The text in a model file: names, notes and operator types are UTF-8, or the file is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from onnxqat.errors import ModelError

_OF_TENSORS = frozenset({"name", "doc_string"})


def check(message: Any, name: str) -> None:
    """Refuse other encodings: protobuf gives such text as bytes, which nothing that reads models expects.

    Args:
        message: a ModelProto, or a message in one.
        name: what the file is called in the error.

    Raises:
        ModelError: ``model-invalid``.
    """
    values = isinstance(message, onnx.TensorProto)  # ListFields would copy them
    for field, held in _of_tensor(message) if values else message.ListFields():
        if field.message_type is not None:
            for inner in held if isinstance(held, Sequence) else (held,):
                check(inner, name)
        elif field.type == field.TYPE_STRING:
            for text in (held,) if isinstance(held, (str, bytes)) else held:
                if isinstance(text, bytes):
                    raise ModelError(
                        "model-invalid",
                        f"{name}: the {field.name} {text[:40]!r} of a {type(message).__name__} is not UTF-8",
                        hint="write the file again with its names in UTF-8, unless it is damaged",
                    )


def _of_tensor(tensor: onnx.TensorProto) -> list[tuple[Any, Any]]:
    return [(f, getattr(tensor, f.name)) for f in tensor.DESCRIPTOR.fields if f.name in _OF_TENSORS]
