"""Scale, zero point, channel axis and blocks that do not fit each other or the tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, query, walk
from onnxqat.linting.context import LintContext, axis, block_size, scale
from onnxqat.linting.rule import Found, Rule


def _shape_mismatch(file: LintContext) -> Iterator[Found]:
    for node in file.ends:
        size = scale(node)
        zero = query.constant_array(query.input_at(node, 2))
        if size is None:
            continue
        if size.ndim > 1 and not block_size(node):
            yield Found(f"the scale has shape {size.shape}: neither one number nor one a channel", node)
        elif zero is not None and zero.shape != size.shape and (zero.size, size.size) != (1, 1):
            yield Found(f"the scale has shape {size.shape}, the zero point {zero.shape}", node)


def _channels(node: ir.Node) -> tuple[np.ndarray, int, int | None] | None:
    """Return scale, axis and rank of a node with one scale per channel; None for others."""
    size, source = scale(node), node.inputs[0]
    if size is None or size.ndim != 1 or block_size(node) or source is None:
        return None
    return size, axis(node), query.rank(source)


def _one_element(file: LintContext) -> Iterator[Found]:
    for node in file.ends:
        found = _channels(node)
        zero = query.constant_array(query.input_at(node, 2))
        if found is not None and found[0].size == 1 and _channel_size(node, found[1], found[2]) != 1:
            yield Found("the scale of the whole tensor is a vector of one element", node)
        elif found is None and zero is not None and zero.shape == (1,) and not block_size(node):
            yield Found("the zero point of the whole tensor is a vector of one element", node)


def _channel_size(node: ir.Node, at: int, rank: int | None) -> int | None:
    source = node.inputs[0]
    if rank is None or source is None or source.shape is None or not -rank <= at < rank:
        return None
    size = source.shape[at]
    return size if isinstance(size, int) else None


def _to_scalars(file: LintContext, found: Sequence[Found]) -> None:
    """One number instead of a vector of one element; the axis, which then means nothing, goes."""
    names = build.Names(file.model)
    for place in found:
        node = place.node
        assert node is not None
        for index in (1, 2):
            value = query.input_at(node, index)
            array = query.constant_array(value)
            if value is None or array is None or array.shape == () or array.size != 1:
                continue
            made = build.constant(
                walk.scope_of(node), names.fresh(str(value.name)), array.reshape(()), value.dtype, before=node
            )
            node.replace_input_with(index, made)
        node.attributes.pop("axis", None)


def _axis_range(file: LintContext) -> Iterator[Found]:
    for node in file.ends:
        size, source = scale(node), node.inputs[0]
        rank = query.rank(source)
        if size is None or rank is None or (size.size == 1 and size.ndim < 2 and not block_size(node)):
            continue
        if not -rank <= axis(node) < rank:
            yield Found(f"axis {axis(node)} of a tensor of rank {rank}", node)


def _axis_length(file: LintContext) -> Iterator[Found]:
    for node in file.ends:
        found = _channels(node)
        if found is None or found[0].size == 1:
            continue
        size = _channel_size(node, found[1], found[2])
        if size is not None and size != found[0].size:
            yield Found(f"{found[0].size} scales for the {size} channels of axis {found[1]}", node)


def _block_shape(file: LintContext) -> Iterator[Found]:
    for node in file.ends:
        block, size, shape = block_size(node), scale(node), query.static_shape(node.inputs[0])
        if not block or size is None or shape is None or not -len(shape) <= axis(node) < len(shape):
            continue
        at = axis(node) % len(shape)
        wanted = (*shape[:at], -(-shape[at] // block), *shape[at + 1 :])
        if size.shape != wanted:
            yield Found(f"blocks of {block} along axis {at} of {shape} need scales {wanted}, not {size.shape}", node)


RULES = (
    Rule(
        code="scale-shape",
        severity="error",
        defect="scale and zero point differ in number, or the scale has more than one axis",
        reason="onnxruntime refuses the model",
        remedy="store both as one number, or both as one number a channel",
        source="ONNX QuantizeLinear 10 to 25: y_zero_point has the shape of y_scale",
        check=_shape_mismatch,
    ),
    Rule(
        code="scale-one-element",
        severity="note",
        defect="the scale or zero point of a whole tensor is a vector of one element",
        reason="onnxruntime's quantizer writes biases so; older runtimes take it for one scale a channel and refuse it",
        remedy="store a scalar without axis",
        source="microsoft/onnxruntime#12151",
        check=_one_element,
        fix=_to_scalars,
    ),
    Rule(
        code="axis-out-of-range",
        severity="error",
        defect="the channel axis lies outside the tensor's rank",
        reason="runtimes refuse the model, or take another axis",
        remedy="write the axis of the channels; the default, 1, is wrong for weights of Conv and for vectors",
        source="ONNX QuantizeLinear 13: axis in [-r, r-1], 1 by default",
        check=_axis_range,
    ),
    Rule(
        code="axis-length",
        severity="error",
        defect="there are more or fewer scales than channels",
        reason="runtimes refuse the model; RKNN: `scale must be equal to channels`",
        remedy="write the axis that the scales belong to: 0 for Conv, 1 for ConvTranspose, the output channels for Gemm",
        source="ONNX QuantizeLinear 13; NVIDIA/TensorRT#994",
        check=_axis_length,
    ),
    Rule(
        code="block-shape",
        severity="error",
        defect="the scales of blocks do not have the tensor's shape with one axis divided by the block size",
        reason="onnxruntime refuses the model",
        remedy="one scale a block along the axis, the last block may be short; the rank is the tensor's",
        source="ONNX QuantizeLinear 21, block_size; microsoft/onnxruntime#28522",
        check=_block_shape,
    ),
)
