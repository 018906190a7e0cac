"""Convolutions with strides of 8 and more on blocks of the map, since RKNN-Toolkit2 ends or computes them in float."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxqat.deployment.workarounds import pair, stored_weight
from onnxqat.graph import build, edit, query, walk
from onnxqat.graph.windows import padding_of
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log

LONGEST = 7
"""Stride that the NPU's convolutions have at most; seen with 2.5.0."""


class RknnLongStrides(Pass):
    """A Conv with a stride of 8 and more becomes one with stride 1 over a map whose blocks are channels.

    The toolkit (seen with 2.5.0) takes such a convolution apart into one of a shorter stride in float16, with or without
    pairs, and one that picks every second place, or is ended by SIGSEGV.

    1. The map is padded with zeros or cut at its ends to what the windows reach, in whole blocks of the strides; each block
       becomes channels, for one axis behind the other: with one Transpose of six axes the toolkit makes one ``exWindow`` of
       it, a rule that fails where as many channels as blocks stand beside one another, and leaves it to the CPU without.
    2. The kernel gets zeros behind its last row and column up to whole blocks, and the same arrangement. That of a
       patch embedding, as large as the stride, becomes one of 1 x 1.
    3. Each of the new nodes has a pair of the parameters of what it reads. Codes, sums and scales are the same.
    4. Left alone: three spatial axes, sizes that are not known, a weight that is computed or has scales along another
       axis than the first.

    Tolerance: float rounding of sums in another order, 1e-6 of the output's range; between pairs none. ::

        y = Conv <strides = [16,16]> (x, w)                             # x (1, 3, 64, 64), w (32, 3, 16, 16)
        r = Reshape(x, (3, 4, 16, 64))  t = Transpose <perm = [0,2,1,3]> (r)
        s = Reshape(t, (48, 4, 4, 16))  u = Transpose <perm = [0,3,1,2]> (s)
        b = Reshape(u, (1, 768, 4, 4))  y = Conv(b, w')                 # w' (32, 768, 1, 1)
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Make blocks; see the class."""
        log = Log()
        for scope, node in walk.nodes_to_edit(model):
            places = _places(node)
            weight = None if places is None else stored_weight.of(node.inputs[1])
            if places is not None and weight is not None and weight.axis in (None, 0):
                _on_blocks(scope, node, places, weight, context.names)
                log.did("a Conv with a stride of 8 or more works on blocks", node)
        if log.changed:
            edit.remove_unused(model)
        return log.result()


@dataclasses.dataclass(frozen=True)
class _Places:
    """Windows of a convolution on the map: numbers for each spatial axis, all in elements of the map.

    Attributes:
        strides: sizes of the blocks.
        dilations: of the kernel.
        blocks: that a window reaches into.
        counts: blocks of the padded map.
        front: padding in front.
        behind: padding behind; below 0 what is cut off.
    """

    strides: list[int]
    dilations: list[int]
    blocks: list[int]
    counts: list[int]
    front: list[int]
    behind: list[int]


def _places(node: ir.Node) -> _Places | None:
    """The windows of `node`; None where it stays as it is."""
    if node.op_type != "Conv" or node.domain:
        return None
    found, kernel, made = (query.static_shape(v) for v in (*node.inputs[:2], node.outputs[0]))
    strides = list(query.attribute(node, "strides", ()))
    if max(strides, default=1) <= LONGEST or len(strides) > 2 or found is None or kernel is None or made is None:
        return None
    dilations = list(query.attribute(node, "dilations", [1] * len(strides)))
    spans = [(size - 1) * apart + 1 for size, apart in zip(kernel[2:], dilations, strict=True)]
    front = [begin for begin, _ in padding_of(node, found[2:], spans, strides)]
    blocks = [math.ceil(span / stride) for span, stride in zip(spans, strides, strict=True)]
    counts = [size - 1 + reach for size, reach in zip(made[2:], blocks, strict=True)]
    behind = [
        count * stride - size - begin
        for count, stride, size, begin in zip(counts, strides, found[2:], front, strict=True)
    ]
    return _Places(strides, dilations, blocks, counts, front, behind)


def _on_blocks(
    scope: walk.Scope, node: ir.Node, places: _Places, weight: stored_weight.Stored, names: build.Names
) -> None:
    """Put the blocks in front of `node`, and let it convolve them with stride 1."""
    source, rank = node.inputs[0], len(places.strides)
    assert source is not None
    like = pair.dequantize_of(source)
    batch, channels = (query.static_shape(source) or ())[:2]
    wide = channels * math.prod(places.strides)
    base = str(node.outputs[0].name)
    padding = [0, 0, *(max(p, 0) for p in places.front), 0, 0, *(max(p, 0) for p in places.behind)]
    ends = [count * stride for count, stride in zip(places.counts, places.strides, strict=True)]
    steps: list[tuple[str, list[list[int]], dict[str, list[int]], list[int]]] = []
    moved = batch * channels
    for axis, (count, stride) in enumerate(zip(places.counts, places.strides, strict=True)):
        if axis == 0:  # rows of blocks in front of the columns, if there are any
            shape, order = [moved, count, stride, math.prod(ends[1:])], [0, 2, 1, 3]
        else:
            shape, order = [moved, places.counts[0], count, stride], [0, 3, 1, 2]
        steps.append(("Reshape", [shape], {}, shape))
        steps.append(("Transpose", [], {"perm": order}, [shape[k] for k in order]))
        moved *= stride
    steps.append(("Reshape", [[batch, wide, *places.counts]], {}, [batch, wide, *places.counts]))
    if min(places.behind) < 0:
        steps.insert(0, ("Slice", [[0] * rank, ends, [*range(2, rank + 2)]], {}, [batch, channels, *ends]))
    if any(padding):
        sizes = [size + max(cut, 0) for size, cut in zip(ends, (-b for b in places.behind), strict=True)]
        steps.insert(0, ("Pad", [padding], {}, [batch, channels, *sizes]))
    value = source
    for op_type, numbers, attributes, shape in steps:
        name = names.fresh(f"{base}_blocks")
        constants = [
            build.constant(scope, names.fresh(f"{name}_{i}"), np.asarray(held, np.int64), before=node)
            for i, held in enumerate(numbers)
        ]
        made = build.node(
            op_type,
            [value, *constants],
            [name],
            attributes,
            dtype=source.dtype,
            shape=ir.Shape(shape),
            name=name,
        )
        scope.insert_before(node, made)
        value = made.outputs[0] if like is None else pair.insert(scope, node, made.outputs[0], like, names, name)
    kernel = _kernel(weight, places)
    arranged = stored_weight.arranged(scope, node, weight, kernel, weight.axis, names)
    node.replace_input_with(0, value)
    node.replace_input_with(1, arranged)
    for key in ("auto_pad", "pads", "dilations", "strides"):
        node.attributes.pop(key, None)
    node.attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", places.blocks)


def _kernel(weight: stored_weight.Stored, places: _Places) -> np.ndarray:
    """The weight with zeros up to whole blocks, and these as channels."""
    array, rank = weight.array, len(places.strides)
    whole = [reach * stride for reach, stride in zip(places.blocks, places.strides, strict=True)]
    filled = np.empty((*array.shape[:2], *whole), array.dtype)
    filled[...] = _zero(weight).reshape(-1, *[1] * (rank + 1))  # the code of 0
    ends = [(size - 1) * apart + 1 for size, apart in zip(array.shape[2:], places.dilations, strict=True)]
    taps: Any = (..., *(slice(0, end, apart) for end, apart in zip(ends, places.dilations, strict=True)))
    filled[taps] = array
    spread = [number for both in zip(places.blocks, places.strides, strict=True) for number in both]
    order = [0, 1, *range(3, 2 * rank + 2, 2), *range(2, 2 * rank + 2, 2)]
    return filled.reshape(*array.shape[:2], *spread).transpose(order).reshape(array.shape[0], -1, *places.blocks)


def _zero(weight: stored_weight.Stored) -> np.ndarray:
    """Zero points of a weight, one or one for each output channel."""
    held = None if weight.quantizer is None or len(weight.quantizer.inputs) < 3 else weight.quantizer.inputs[2]
    found = query.constant_array(held)
    return np.zeros(1, weight.array.dtype) if found is None else np.atleast_1d(found)
