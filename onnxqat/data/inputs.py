"""Inputs of a model, and checks that a batch fits them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.errors import DataError

if TYPE_CHECKING:
    import onnxruntime

Feeds: TypeAlias = dict[str, npt.NDArray[Any]]

_RUNTIME_TYPES = {
    "float": "float32",
    "double": "float64",
    "string": "object",
}
# Widening that changes no value, the two types that numpy makes by default, and float data for any type of float model.
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_CASTS = {("int32", "int64"), ("int16", "int64"), ("int8", "int64"), *itertools.permutations(_FLOATS, 2)}


@dataclasses.dataclass(frozen=True)
class InputInfo:
    """One input of a model.

    Attributes:
        name: as in the graph.
        dtype: numpy name of the element type (``object`` for strings, ``float32`` for bfloat16, which numpy does not have).
        shape: static sizes as int, dynamic ones as their name or None; None when the rank is unknown.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None

    def __str__(self) -> str:
        dims = "?" if self.shape is None else ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"{self.name!r} ({self.dtype}[{dims}])"


def of_session(session: onnxruntime.InferenceSession) -> list[InputInfo]:
    """The inputs that a session must be fed."""
    found = []
    for value in session.get_inputs():
        kind = value.type.removeprefix("tensor(").removesuffix(")")
        shape = None if value.shape is None else tuple(map(_dim, value.shape))
        found.append(InputInfo(value.name, _RUNTIME_TYPES.get(kind, kind), shape))
    return found


def of_graph(graph: ir.Graph) -> list[InputInfo]:
    """The inputs of `graph` that have no initializer, which would be their default."""
    found = []
    for value in graph.inputs:
        if value.name is None or value.name in graph.initializers:
            continue
        dims = None if value.shape is None else tuple(_dim(d if isinstance(d, int) else d.value) for d in value.shape)
        kind = ir.DataType.FLOAT if value.dtype in (None, ir.DataType.BFLOAT16) else value.dtype
        dtype = str(kind.numpy())
        found.append(InputInfo(value.name, dtype, dims))
    return found


def _dim(dim: int | str | None) -> int | str | None:
    """Some exporters write an unknown size as -1 or 0."""
    return None if isinstance(dim, int) and dim < 1 else dim


def static_batch(inputs: Sequence[InputInfo]) -> int | None:
    """The batch size that every input prescribes; None where one is dynamic, scalar or disagrees."""
    sizes = {info.shape[0] if info.shape else None for info in inputs}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) else None


def dimensions(feeds: Mapping[str, npt.NDArray[Any]], inputs: Sequence[InputInfo]) -> dict[str, int]:
    """Sizes that the symbolic dimensions of `inputs` have in `feeds`, by name."""
    fed = [info for info in inputs if info.name in feeds]
    axes = [axis for info in fed for axis in zip(info.shape or (), feeds[info.name].shape, strict=False)]
    return {dimension: size for dimension, size in axes if isinstance(dimension, str)}


def samples_of(feeds: Mapping[str, npt.NDArray[Any]]) -> int:
    """Number of samples of a batch: the first axis that its inputs have in common but for scalars; 1 where there is none.

    A state of (layers, batch, size) beside windows has none, nor has a sequence beside the state that it starts from.
    """
    sizes = {len(array) for array in feeds.values() if array.ndim}
    return sizes.pop() if len(sizes) == 1 else 1


def check_names(given: Mapping[str, object], inputs: Sequence[InputInfo], origin: str) -> None:
    """Refuse a batch whose names are not exactly the model's inputs.

    Raises:
        DataError: ``data-input-name``.
    """
    expected = {info.name for info in inputs}
    missing, unknown = sorted(expected - given.keys()), sorted(str(n) for n in given.keys() - expected)
    if missing or unknown:
        problem = " and ".join(
            part
            for part in (
                f"input {', '.join(map(repr, missing))} is missing" if missing else "",
                f"{', '.join(map(repr, unknown))} {'is no input' if len(unknown) == 1 else 'are no inputs'} of the model"
                if unknown
                else "",
            )
            if part
        )
        raise DataError(
            "data-input-name",
            f"{origin}: {problem}",
            hint=f"the model's inputs are {', '.join(str(info) for info in inputs)}",
        )


def fitted(
    values: npt.NDArray[Any], info: InputInfo, origin: str, *, batch: bool = True, images: bool = False
) -> npt.NDArray[Any]:
    """`values` in the input's dtype, after the checks of rank, static sizes and type.

    Args:
        values: one input of one batch.
        info: the input.
        origin: what messages call the source.
        batch: check the first axis as well; without, a later step cuts it to the model's batch size.
        images: they come from image files, which the preprocessing can bring to any size.

    Raises:
        DataError: ``data-shape`` or ``data-format``, with what was expected and what was found.
    """
    expected = info.shape
    if expected is not None:
        pairs = list(zip(values.shape, expected, strict=False))[0 if batch else 1 :]
        wrong = any(isinstance(size, int) and size != found for found, size in pairs)
        if values.ndim != len(expected) or wrong:
            raise DataError(
                "data-shape",
                f"{origin}: input {info} does not take an array of shape {list(values.shape)}",
                hint=_no_batch(values.shape, expected)
                or _other_layout(values.shape, expected)
                or _other_size(values.shape, expected, images=images),
            )
    dtype = values.dtype.name if values.dtype.kind not in "OUST" else "object"
    if dtype == info.dtype:
        return values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))
    if (dtype, info.dtype) not in _CASTS:
        raise DataError(
            "data-format",
            f"{origin}: input {info} does not take an array of type {dtype}",
            hint=f"convert it to {info.dtype} where the data are made",
        )
    with np.errstate(over="ignore"):
        return values.astype(info.dtype)


def _no_batch(found: tuple[int, ...], expected: tuple[int | str | None, ...]) -> str:
    """Hint for one sample without the axis that counts samples; empty if that is not the defect."""
    sides = expected[1:]
    alone = len(found) == len(sides) and all(s == f for f, s in zip(found, sides, strict=True) if isinstance(s, int))
    return (
        "the first axis counts samples: give one sample as array[None], several as numpy.stack(arrays)" if alone else ""
    )


def _other_size(found: tuple[int, ...], expected: tuple[int | str | None, ...], *, images: bool) -> str:
    """Hint for a wrong size: resize images by ``--preprocess``, make arrays anew."""
    if not images:
        return "give arrays of the input's shape; only folders of images are resized, by --preprocess"
    # Sides beyond the colours' 1 to 4: where none is wrong, the number of channels is.
    pairs = [*zip(found[1:], expected[1:], strict=False)]
    if all(size == have for have, size in pairs if isinstance(size, int) and size > 4):
        return "only the number of channels differs: --preprocess rgb has three, gray has one"
    sizes = [size for size in expected[1:] if isinstance(size, int) and size > 4]
    example = f"resize={sizes[0]}x{sizes[1]}" if len(sizes) == 2 else "resize=model"
    return f"resize the images in the preprocessing: --preprocess {example}"


def _other_layout(found: tuple[int, ...], expected: tuple[int | str | None, ...]) -> str:
    """Hint for images with channels at the wrong end (NHWC for NCHW); empty if that is not the defect."""
    for name, order in (("last", (0, 3, 1, 2)), ("first", (0, 2, 3, 1))):
        if len(found) == len(expected) == len(order):
            moved = [found[axis] for axis in order]
            if all(
                not isinstance(size, int) or size == have for have, size in zip(moved[1:], expected[1:], strict=True)
            ):
                return f"channels are {name} in the data: transpose to {order} where they are made"
    return ""
