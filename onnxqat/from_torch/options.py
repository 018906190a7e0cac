"""Options of an exporter: names, dynamic axes, operator set, treatment of BatchNormalization."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from onnxqat.discover import unknown
from onnxqat.errors import UsageError
from onnxqat.from_torch.call import Call

BatchNorm = Literal["fold", "keep"]
DynamicShapes = Mapping[str, Mapping[int, Any] | Sequence[int] | None] | Sequence[Any]
BATCH = "batch"


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of one export.

    Attributes:
        opset: version of ai.onnx.
        keep_batch_norm: BatchNormalization stays a node.
        input_names: of the graph, in order.
        output_names: of the graph, in order.
        input_axes: names of the dynamic axes of each input.
        output_axes: names of the dynamic axes of each output.
    """

    opset: int
    keep_batch_norm: bool
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    input_axes: tuple[dict[int, str], ...]
    output_axes: tuple[dict[int, str], ...]


def names(given: Sequence[str] | None, own: Sequence[str], what: str) -> tuple[str, ...]:
    """`given` names where there are any, otherwise `own`.

    Raises:
        UsageError: ``option-invalid``: too few, too many or the same name twice.
    """
    found = tuple(own if given is None else given)
    if len(found) != len(own) or len(set(found)) != len(found) or not all(found):
        raise UsageError(
            "option-invalid", f"{what} {list(found)} do not name {len(own)} tensors", hint="one name each, none twice"
        )
    return found


def batch_axes(call: Call) -> tuple[dict[int, str], ...]:
    """Axis 0 of each input that has as many samples as the first one."""
    sizes = [tensor.shape[0] if tensor.ndim else None for tensor in call.inputs]
    first = next((size for size in sizes if size is not None), None)
    return tuple({0: BATCH} if size is not None and size == first else {} for size in sizes)


def given_axes(call: Call, shapes: DynamicShapes | None) -> tuple[dict[int, str], ...]:
    """The axes that the user names, by input.

    Args:
        call: the call.
        shapes: by input name or in order, each a mapping from axis to its name (a str or a torch.export.Dim), a list of
            axes, or None.

    Raises:
        UsageError: ``name-unknown``, ``option-invalid``.
    """
    if shapes is None:
        return tuple({} for _ in call.inputs)
    if not isinstance(shapes, Mapping):
        shapes = dict(zip(call.names, shapes, strict=False))
    for name in shapes:
        if name not in call.names:
            raise unknown("input", name, list(call.names))
    return tuple(_axes(name, tensor, shapes.get(name)) for name, tensor in zip(call.names, call.inputs, strict=True))


def _axes(name: str, tensor: torch.Tensor, spec: Any) -> dict[int, str]:
    if spec is None:
        return {}
    named = dict(spec) if isinstance(spec, Mapping) else {axis: f"{name}_{axis}" for axis in spec}
    found = {}
    for axis, title in named.items():
        if not isinstance(axis, int) or not -tensor.ndim <= axis < tensor.ndim:
            raise UsageError("option-invalid", f"input {name!r} of shape {list(tensor.shape)} has no axis {axis!r}")
        if title is not None:
            found[axis % tensor.ndim] = title if isinstance(title, str) else str(getattr(title, "__name__", title))
    return found
