"""Wide MaxPools as several of 5 x 5, since RKNN-Toolkit2 gives other codes for one of 9 x 9."""

from __future__ import annotations

import onnx
from onnx import helper

_SIDE, _REACH = 5, 2


def with_small_pools(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which a MaxPool over windows of 9 x 9, 13 x 13, ... that keeps the size is a chain of 5 x 5.

    The maximum of maxima is the same number, also at the border, where padding never counts. The toolkit (seen with
    2.5.0) is two steps off in the 9 x 9 pool of YOLOX-Nano's SPP, beside ones of 5 x 5 and 13 x 13. Left alone: strides,
    dilations, other padding, indices as a second output. ::

        y = MaxPool<kernel_shape = [9,9], pads = [4,4,4,4]>(x)
        a = MaxPool<kernel_shape = [5,5], pads = [2,2,2,2]>(x)   y = MaxPool<kernel_shape = [5,5], pads = [2,2,2,2]>(a)

    Args:
        model: deploy form; it is not changed.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    nodes: list[onnx.NodeProto] = []
    for node in made.graph.node:
        nodes += _chain(node, _count(node)) if node.op_type == "MaxPool" and not node.domain else [node]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


def _count(node: onnx.NodeProto) -> int:
    """Number of 5 x 5 pools that take the place of the MaxPool `node`; 1 where it stays as it is."""
    held = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    side = held["kernel_shape"][0]
    reach = side // 2
    keeps_size = (
        list(held["kernel_shape"]) == [side, side]
        and list(held.get("pads", ())) == [reach] * 4
        and set(held.get("strides", (1,))) | set(held.get("dilations", (1,))) == {1}
        and held.get("auto_pad", b"NOTSET") == b"NOTSET"
    )
    return reach // _REACH if keeps_size and side % 2 and reach % _REACH == 0 and len(node.output) == 1 else 1


def _chain(node: onnx.NodeProto, count: int) -> list[onnx.NodeProto]:
    if count <= 1:
        return [node]
    steps = [node.input[0], *(f"{node.output[0]}_pooled_{i}" for i in range(1, count)), node.output[0]]
    names = [*steps[1:-1], node.name]
    return [
        helper.make_node("MaxPool", [x], [y], name, kernel_shape=[_SIDE] * 2, pads=[_REACH] * 4, strides=[1, 1])
        for x, y, name in zip(steps, steps[1:], names, strict=False)
    ]
