"""Wide MaxPools as several of 5 x 5, since RKNN-Toolkit2 gives other codes for one of 9 x 9."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import build, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log

_SIDE, _REACH = 5, 2
_SMALL = {"kernel_shape": [_SIDE] * 2, "pads": [_REACH] * 4, "strides": [1, 1]}


class RknnMaxPools(Pass):
    """A MaxPool over windows of 9 x 9, 13 x 13, ... that keeps the size is a chain of 5 x 5.

    The maximum of maxima is the same number, also at the border, where padding never counts. The toolkit (seen with
    2.5.0) is two steps off in the 9 x 9 pool of YOLOX-Nano's SPP, beside ones of 5 x 5 and 13 x 13.

    Left alone: strides, dilations, other padding, indices as a second output, attributes of functions.

    Tolerance: none. ::

        y = MaxPool<kernel_shape = [9,9], pads = [4,4,4,4]>(x)
        a = MaxPool<kernel_shape = [5,5], pads = [2,2,2,2]>(x)   y = MaxPool<kernel_shape = [5,5], pads = [2,2,2,2]>(a)
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Take each wide pool apart; see the class."""
        log = Log()
        for scope in walk.scopes(model):
            for node in list(scope):
                count = _count(node)
                if count > 1:
                    _split(scope, node, count, context.names)
                    log.did("a wide MaxPool became several of 5 x 5", node)
        return log.result()


def _count(node: ir.Node) -> int:
    """Number of 5 x 5 pools that take the place of the MaxPool `node`; 1 where it stays as it is."""
    if node.op_type != "MaxPool" or node.domain or any(a.is_ref() for a in node.attributes.values()):
        return 1
    kernel = list(query.attribute(node, "kernel_shape", ()))
    side = kernel[0]
    reach = side // 2
    keeps_size = (
        kernel == [side, side]
        and list(query.attribute(node, "pads", ())) == [reach] * 4
        and {*query.attribute(node, "strides", (1,)), *query.attribute(node, "dilations", (1,))} == {1}
        and query.attribute(node, "auto_pad", "NOTSET") == "NOTSET"
    )
    return reach // _REACH if keeps_size and side % 2 and reach % _REACH == 0 and len(node.outputs) == 1 else 1


def _split(scope: walk.Scope, node: ir.Node, count: int, names: build.Names) -> None:
    """Put `count` - 1 small pools in front of `node`, which becomes the last one and keeps its name and output."""
    output = node.outputs[0]
    for number in range(1, count):
        name = names.fresh(f"{output.name}_pooled_{number}")
        made = build.node(
            "MaxPool", [node.inputs[0]], [name], _SMALL, dtype=output.dtype, shape=output.shape, name=name
        )
        scope.insert_before(node, made)
        node.replace_input_with(0, made.outputs[0])
    node.attributes.pop("dilations", None)
    for key, value in _SMALL.items():
        node.attributes[key] = ir.AttrInt64s(key, value)
