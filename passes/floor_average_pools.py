"""Windows of an AveragePool that reach over the end of their input become padding that is not counted."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log
from onnxqat.passes._setting import Setting


class FloorAveragePools(Pass):
    """An AveragePool with ``ceil_mode`` gets as much padding behind its input as its last windows read, and no ceil_mode.

    The padding is not counted, and neither was what lies beyond the input. onnxruntime-qnn 2.7 divides by whole windows
    there, in integers and in float: a third of the values of a map of 5 x 4 are wrong, by up to 95 steps. Padding behind
    the input that is not counted it computes as it should. With more of it behind than in front of the input, or behind a
    Pad, it does not, whichever attribute says so: for these pools nothing is won, and the hand-off says so.

    Left alone: pools that count padding (pad-counted-pools), dilations, ``auto_pad``, sizes that are not known, and
    attributes of functions.

    Tolerance: float rounding, 1e-6 of the output's range. ::

        y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (x)      # x: 1, 6, 10, 8
        y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [0, 0, 1, 1]> (x)
    """

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run where the table takes no pool with ``ceil_mode``."""
        pool = setting.table.ops.get("AveragePool")
        return cls() if pool is not None and pool.when.get("ceil_mode", 1) == 0 else None

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Rewrite each pool; see the class."""
        log = Log()
        for node in walk.nodes(model):
            pads = _padding(node)
            if pads is not None:
                node.attributes.pop("ceil_mode")
                node.attributes["pads"] = ir.AttrInt64s("pads", pads)
                log.did("windows of an AveragePool over the end of its input became padding", node)
        return log.result()


def _padding(node: ir.Node) -> list[int] | None:
    """``pads`` that make `node` the same without ``ceil_mode``; None where it has none, or they are not known."""
    if node.op_type != "AveragePool" or node.domain or query.takes_arguments(node):
        return None
    kernel = [int(size) for size in query.attribute(node, "kernel_shape", ())]
    rank = len(kernel)
    strides, dilations = (query.attribute(node, name, ()) or [1] * rank for name in ("strides", "dilations"))
    stated = [int(pad) for pad in query.attribute(node, "pads", ()) or [0] * 2 * rank]
    other = query.attribute(node, "auto_pad", "NOTSET") != "NOTSET" or {*dilations} != {1}
    if not query.attribute(node, "ceil_mode", 0) or query.attribute(node, "count_include_pad", 0) or other:
        return None
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    ends = []
    for axis, size in enumerate(list(shape)[2:] if shape is not None else [None] * rank):
        if not isinstance(size, int):
            return None
        ends.append(_end(size + stated[axis], kernel[axis], int(strides[axis]), stated[axis + rank]))
    return stated[:rank] + ends


def _end(size: int, kernel: int, stride: int, end: int) -> int:
    """Padding behind `size` places (those in front counted) that the last window reads; none starts in padding."""
    windows = -(-(size + end - kernel) // stride) + 1
    if (windows - 1) * stride >= size:
        windows -= 1
    return max((windows - 1) * stride + kernel - size, 0)
