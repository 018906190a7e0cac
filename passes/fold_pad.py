"""Pad in front of Conv or MaxPool folded into the padding that these do by themselves."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat.graph import query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, drop_unused

PADDING = {"Conv": 0.0, "MaxPool": float(np.finfo(np.float32).min)}
"""Padding value of each operator; for MaxPool anything that is not above the number given."""
WORDS = {"Conv": "zeros", "MaxPool": "the lowest numbers"}


class FoldPad(Pass):
    """Zeros that a Pad puts around the input of Conv, and lowest numbers around that of MaxPool, become their padding.

    Exporters of TensorFlow and of slimmed networks write such a Pad. Compilers have no integer kernel for it and take
    the tensor to float and back, while a layer pads for nothing; and no scale fits the lowest number beside data.

    1. Constant amounts, not negative, on spatial axes alone, value 0: added to ``pads`` of every Conv that reads.
    2. The same with -inf or the lowest float32, and MaxPool: what it pads with is below all numbers. Every window must
       keep a number, so that the padding stays smaller than the kernel; ``ceil_mode`` and indices depend on the size
       of the padded tensor, and are left alone.
    3. Left alone, with the reason: a Pad that anything but the input of such layers reads, and layers with ``auto_pad``
       other than NOTSET or VALID. AveragePool is not folded: what its padding counts differs between runtimes.

    Tolerance: none. ::

        p = Pad(x, pads)               <int64[8] pads = {0, 0, 0, 0, 0, 0, 1, 1}>
        y = Conv <strides = [2, 2]> (p, w)
        y = Conv <strides = [2, 2], pads = [0, 0, 1, 1]> (x, w)
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Fold each Pad; see the class."""
        log = Log()
        for _, node in walk.nodes_to_edit(model):
            if node.op_type == "Pad" and node.domain == "":
                self._fold(node, log)
        return log.result()

    def _fold(self, node: ir.Node, log: Log) -> None:
        """Add the amounts of one Pad to the padding of its readers and drop it, where all of them can take it."""
        padded = node.outputs[0]
        uses = list(padded.uses())
        reader = next((use.node.op_type for use in uses if use.node.op_type in PADDING), None)
        if reader is None:
            return
        amounts = _spatial_amounts(node, PADDING[reader])
        if amounts is None:
            log.left(f"a Pad that does more than put {WORDS[reader]} around images", node)
            return
        takes = all(use.node.op_type == reader and _takes_padding(use.node, use.idx, amounts) for use in uses)
        if padded.is_graph_output() or not takes:
            log.left(f"a Pad that is not read by {reader} that can take it alone", node)
            return
        source, constants, scope = node.inputs[0], list(node.inputs[1:]), walk.scope_of(node)
        assert source is not None
        for use in uses:
            own = query.attribute(use.node, "pads", [0] * len(amounts))
            total = [int(a) + b for a, b in zip(own, amounts, strict=True)]
            use.node.attributes["pads"] = ir.AttrInt64s("pads", total)
            use.node.attributes.pop("auto_pad", None)
            use.node.replace_input_with(use.idx, source)
        scope.remove(node, safe=True)
        for constant in constants:
            drop_unused(constant)
        log.did(f"Pad became padding of {reader}", node)


def _spatial_amounts(node: ir.Node, largest: float) -> list[int] | None:
    """Amounts before and behind each spatial axis, where that is all that the Pad does, with 0 or at most `largest`."""
    mode = node.attributes.get("mode")
    if mode is not None and (mode.is_ref() or mode.as_string() != "constant"):
        return None
    value = query.input_at(node, 2)
    filled = np.zeros(1) if value is None else query.constant_array(value)
    if filled is None:
        return None
    if filled.item() != 0 if largest == 0 else filled.item() > largest:
        return None
    found = query.constant_array(query.input_at(node, 1))
    if found is None or query.input_at(node, 3) is not None or (found < 0).any():
        return None
    begins, ends = found.reshape(2, -1).tolist()
    return None if any(begins[:2] + ends[:2]) else [int(n) for n in begins[2:] + ends[2:]]


def _takes_padding(node: ir.Node, index: int, amounts: list[int]) -> bool:
    if node.domain != "" or index != 0:
        return False
    settings = [node.attributes.get(name) for name in ("auto_pad", "pads")]
    if any(attribute is not None and attribute.is_ref() for attribute in settings):
        return False
    if settings[0] is not None and settings[0].as_string() not in ("NOTSET", "VALID"):
        return False
    return node.op_type == "Conv" or _keeps_a_number(node, amounts)


def _keeps_a_number(pool: ir.Node, amounts: list[int]) -> bool:
    """Check whether MaxPool `pool`, padded by `amounts` more, has data in every window, and no indices as output."""
    if any(pool.attributes[name].is_ref() for name in ("kernel_shape", "ceil_mode") if name in pool.attributes):
        return False
    kernel = [int(n) for n in query.attribute(pool, "kernel_shape", [])]
    own = query.attribute(pool, "pads", [0] * len(amounts))
    small = all(int(a) + b < k for a, b, k in zip(own, amounts, kernel * 2, strict=True))
    return small and len(pool.outputs) == 1 and not query.attribute(pool, "ceil_mode", 0)
