"""Broadcasting of ONNX versions 1 to 6: attribute ``broadcast``, and ``axis`` for where the second shape starts.

Without ``axis`` the second shape is matched from the end, as in NumPy; with it, the axes behind the match are added as
axes of size 1.
"""

from __future__ import annotations

import operator

from torch import fx

from onnxqat.bridge.importing.builder import NodeView

LAST_OPSET = 6


def trailing_axes(n: NodeView) -> int:
    """Count the axes of size 1 that the second input needs at its end; 0 from version 7 on."""
    if n.opset > LAST_OPSET or not n.attr("broadcast", 0) or n.attr("axis") is None:
        return 0
    first, second = n.need_rank(0), n.need_rank(1)
    axis = int(n.attr("axis"))
    return first - (axis + first if axis < 0 else axis) - second


def right(n: NodeView) -> fx.Node:
    """The second input as a tensor that broadcasts like NumPy's."""
    added = trailing_axes(n)
    if not added:
        return n.tensor(1)
    return n.call(operator.getitem, n.tensor(1), (..., *[None] * added))
