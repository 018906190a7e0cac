"""Wide MaxPools as several small ones, since RKNN-Toolkit2 gives other codes for 9 x 9 and for windows beyond the map."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import build, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log

_REACH = 2
_SQUARE = {"kernel_shape": [5, 5], "pads": [_REACH] * 4, "strides": [1, 1]}
_LINES = (
    {"kernel_shape": [3, 1], "pads": [1, 0, 1, 0], "strides": [1, 1]},
    {"kernel_shape": [1, 3], "pads": [0, 1, 0, 1], "strides": [1, 1]},
)
"""Pools along columns and rows in turns: of two square ones behind one another the toolkit makes one of 5 x 5 again."""

Attributes = dict[str, list[int]]


class RknnMaxPools(Pass):
    """A MaxPool over windows of 9 x 9, 13 x 13, ... that keeps the size is a chain of 5 x 5, on a small map of 3 x 1 and 1 x 3.

    The maximum of maxima is the same number, also at the border, where padding never counts. The toolkit (seen with
    2.5.0) is two steps off in the 9 x 9 pool of YOLOX-Nano's SPP, beside ones of 5 x 5 and 13 x 13. Of a window that is
    longer than the map (5 x 5 on 4 x 4, 7 x 7 on 6 x 6) it takes the maximum of what lies outside of it too; windows of
    three are right on any map.

    Left alone: strides, dilations, other padding, indices as a second output, attributes of functions.

    Tolerance: none. ::

        y = MaxPool<kernel_shape = [9,9], pads = [4,4,4,4]>(x)
        a = MaxPool<kernel_shape = [5,5], pads = [2,2,2,2]>(x)   y = MaxPool<kernel_shape = [5,5], pads = [2,2,2,2]>(a)
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Take each wide pool apart; see the class."""
        log = Log()
        for scope, node in walk.nodes_to_edit(model):
            pools = _pools(node)
            if pools:
                _split(scope, node, pools, context.names)
                log.did("a MaxPool became several smaller ones", node)
        return log.result()


def _reach(node: ir.Node) -> int:
    """Return how far the windows of the MaxPool `node` reach to each side; 0 where it stays as it is."""
    if node.op_type != "MaxPool" or node.domain or query.takes_arguments(node):
        return 0
    kernel = list(query.attribute(node, "kernel_shape", ()))
    side = kernel[0]
    reach = int(side // 2)
    keeps_size = (
        kernel == [side, side]
        and list(query.attribute(node, "pads", ())) == [reach] * 4
        and {*query.attribute(node, "strides", (1,)), *query.attribute(node, "dilations", (1,))} == {1}
        and query.attribute(node, "auto_pad", "NOTSET") == "NOTSET"
    )
    return reach if keeps_size and side % 2 and len(node.outputs) == 1 else 0


def _pools(node: ir.Node) -> list[Attributes]:
    """Attributes of the pools in place of `node`; none where it stays as it is."""
    reach = _reach(node)
    shape = query.static_shape(node.outputs[0]) if reach > 1 else None
    if shape is not None and min(shape[2:]) <= 2 * reach:
        return [*_LINES] * reach
    return [_SQUARE] * (reach // _REACH) if reach > _REACH and reach % _REACH == 0 else []


def _split(scope: walk.Scope, node: ir.Node, pools: list[Attributes], names: build.Names) -> None:
    """Put all but the last of `pools` in front of `node`, which becomes the last one and keeps its name and output."""
    output = node.outputs[0]
    for number, attributes in enumerate(pools[:-1], 1):
        name = names.fresh(f"{output.name}_pooled_{number}")
        made = build.node(
            "MaxPool", [node.inputs[0]], [name], attributes, dtype=output.dtype, shape=output.shape, name=name
        )
        scope.insert_before(node, made)
        node.replace_input_with(0, made.outputs[0])
    node.attributes.pop("dilations", None)
    for key, value in pools[-1].items():
        node.attributes[key] = ir.AttrInt64s(key, value)
