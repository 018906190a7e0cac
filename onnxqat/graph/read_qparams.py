"""Quantization parameters read from the inputs and attributes of a QuantizeLinear or DequantizeLinear (ONNX 10 to 25)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.graph import notes, query
from onnxqat.types import FLOAT_STORAGE, STORAGE, QParams, QType

Array = npt.NDArray[np.generic]


class NotAQuantizerError(Exception):
    """A node that no quantizer stands for; the message is the reason."""


def read(node: ir.Node, clip: ir.Node | None) -> QParams:
    """Return the parameters of `node`.

    Args:
        node: QuantizeLinear or DequantizeLinear.
        clip: the Clip between the two, which narrows the grid.

    Raises:
        NotAQuantizerError: parameters that are computed, or that break ONNX's rules for them.
    """
    block = int(query.attribute(node, "block_size", 0))
    stored, zero_point = _constants(node)
    storage = _storage(node)
    scale, codes = _shaped(node, stored, zero_point, block)
    _check_values(scale, codes, storage, block)
    low, high = _range(storage, clip)
    axis = _axis(node, scale, block)
    power_of_two = stored.dtype == ir.DataType.FLOAT8E8M0.numpy()
    bits = notes.scale_bits(node, scale) or (1 if power_of_two else None)
    return QParams(scale, codes, QType(storage, low, high), axis, bits, block or None)


def _constants(node: ir.Node) -> tuple[Array, Array | None]:
    """Scale and zero point as they are stored; None for a zero point that is left out."""
    scale = query.constant_array(query.input_at(node, 1))
    if scale is None:
        raise NotAQuantizerError("its scale is computed")
    zero_input = query.input_at(node, 2)
    zero_point = query.constant_array(zero_input)
    if zero_input is not None and zero_point is None:
        raise NotAQuantizerError("its zero point is computed")
    return scale, zero_point


def _storage(node: ir.Node) -> str:
    """Name of the type of the codes: that of the zero point, of the codes, of `output_dtype`, else uint8."""
    found = element_type(query.input_at(node, 2))
    if found is None and node.op_type == "DequantizeLinear":
        found = element_type(node.inputs[0]) or "uint8"
    if found is None:
        stated = int(query.attribute(node, "output_dtype", 0))
        is_known = stated != 0 and stated in set(ir.DataType)
        found = ir.DataType(stated).name.lower() if is_known else "uint8"
    if found not in STORAGE and found not in FLOAT_STORAGE:
        raise NotAQuantizerError(f"its codes are of the type {found}")
    return found


def element_type(value: ir.Value | None) -> str | None:
    """Return the name in small letters; a Constant node of a function body states none, but holds a tensor that does."""
    if value is None:
        return None
    found = query.constant_tensor(value) if value.dtype is None else None
    dtype = value.dtype if found is None else found.dtype
    return None if dtype is None else dtype.name.lower()


def _shaped(
    node: ir.Node, stored: Array, zero_point: Array | None, block: int
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Scale in float32 and zero point in int64, scalars where one element stands for the whole tensor."""
    scale = np.asarray(stored, np.float32)
    codes = np.zeros(scale.shape, np.int64) if zero_point is None else np.asarray(zero_point).astype(np.int64)
    if scale.shape == (1,) and codes.size == 1 and not block and not _is_per_channel(node):
        scale, codes = scale.reshape(()), codes.reshape(())
    rank = query.rank(node.inputs[0])
    right_rank = scale.ndim > 0 and scale.ndim == rank if block else scale.ndim <= 1
    if not right_rank:
        raise NotAQuantizerError(f"its scale has {scale.ndim} dimensions")
    if scale.shape != codes.shape:
        raise NotAQuantizerError(f"its scale has shape {scale.shape}, its zero point {codes.shape}")
    return scale, codes


def _is_per_channel(node: ir.Node) -> bool:
    """Check whether a scale of one element is that of the one channel that the tensor has."""
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    if "axis" not in node.attributes or shape is None or not len(shape):
        return False
    axis = int(query.attribute(node, "axis", 1))
    return -len(shape) <= axis < len(shape) and shape[axis] == 1


def _check_values(scale: npt.NDArray[np.float32], codes: npt.NDArray[np.int64], storage: str, block: int) -> None:
    # Blocks of MatMulNBits may have negative scales: the sign stands for the order of the codes.
    usable = np.isfinite(scale) & ((scale != 0) if block else (scale > 0))
    if not usable.all():
        raise NotAQuantizerError("its scale is negative, 0, NaN or infinite")
    if storage == "int32" and codes.any():
        raise NotAQuantizerError("ONNX has no zero point for int32, and runtimes wrap around")
    if storage in FLOAT_STORAGE and codes.any():
        raise NotAQuantizerError("a grid of floats has no zero point")


def _range(storage: str, clip: ir.Node | None) -> tuple[int, int]:
    """Smallest and largest code."""
    if storage in FLOAT_STORAGE:
        if clip is not None:
            raise NotAQuantizerError("a Clip narrows a grid of floats")
        return -FLOAT_STORAGE[storage], FLOAT_STORAGE[storage]
    low, high, _ = STORAGE[storage]
    return (low, high) if clip is None else _clip_bounds(clip, low, high)


def _clip_bounds(clip: ir.Node, low: int, high: int) -> tuple[int, int]:
    """The bounds of a Clip on codes; those of the type where they are left out."""
    bounds = [low, high]
    for index, value in enumerate(clip.inputs[1:3]):
        if value is None:
            continue
        array = query.constant_array(value)
        if array is None or array.size != 1:
            raise NotAQuantizerError("a bound of its Clip is computed")
        bounds[index] = int(np.asarray(array).astype(np.int64).reshape(()))
    if not low <= bounds[0] < bounds[1] <= high:
        raise NotAQuantizerError(f"its Clip leaves the codes {bounds[0]} to {bounds[1]}")
    return bounds[0], bounds[1]


def _axis(node: ir.Node, scale: npt.NDArray[np.float32], block: int) -> int | None:
    """Axis of the channels, or of the blocks, counted from the front; None for one scale."""
    if not scale.ndim:
        return None
    axis = int(query.attribute(node, "axis", 1))
    if axis < 0:
        rank = query.rank(node.inputs[0])
        if rank is None:
            raise NotAQuantizerError(f"its axis {axis} counts from the end of an unknown number of dimensions")
        axis += rank
    if not _fits(node.inputs[0], scale.shape, axis, block):
        raise NotAQuantizerError(f"scales of shape {scale.shape} do not fit axis {axis}")
    return axis


def _fits(value: ir.Value | None, scales: tuple[int, ...], axis: int, block: int) -> bool:
    """Check whether there is one scale per index of `axis`, or per block along it, as far as sizes are known."""
    sizes = value.shape if value is not None else None
    if sizes is None:
        return True
    if not 0 <= axis < len(sizes):
        return False
    wanted, along = [sizes[axis]] if not block else list(sizes), sizes[axis]
    if block and isinstance(along, int):
        wanted[axis] = -(-along // block)
    return all(not isinstance(size, int) or size == have for size, have in zip(wanted, scales, strict=True))
