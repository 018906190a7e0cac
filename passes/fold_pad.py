"""Pad with zeros in front of Conv folded into the convolution."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, drop_unused


class FoldPad(Pass):
    """Zeros that a Pad puts around the input of Conv become the padding of Conv.

    Exporters of TensorFlow and of slimmed networks write such a Pad. Compilers have no integer kernel for it and take
    the tensor to float and back, while a convolution pads for nothing.

    1. Constant amounts, not negative, on spatial axes alone, value 0: added to ``pads`` of every reader.
    2. Left alone, with the reason: a Pad that anything but the input of such convolutions reads, and convolutions
       with ``auto_pad`` other than NOTSET or VALID. AveragePool is not folded: what its padding counts differs
       between runtimes.

    Tolerance: none. ::

        p = Pad(x, pads)               <int64[8] pads = {0, 0, 0, 0, 0, 0, 1, 1}>
        y = Conv <strides = [2, 2]> (p, w)
        y = Conv <strides = [2, 2], pads = [0, 0, 1, 1]> (x, w)
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Fold each Pad; see the class."""
        log = Log()
        for scope in walk.scopes(model):
            for node in list(scope):
                if node.op_type == "Pad" and node.domain == "":
                    self._fold(node, log)
        return log.result()

    def _fold(self, node: ir.Node, log: Log) -> None:
        padded = node.outputs[0]
        uses = list(padded.uses())
        if not any(use.node.op_type == "Conv" for use in uses):
            return
        amounts = _spatial_zeros(node)
        if amounts is None:
            log.left("a Pad that does more than put zeros around images", node)
            return
        if padded.is_graph_output() or not all(_takes_padding(use.node, use.idx) for use in uses):
            log.left("a Pad that is not read by convolutions alone", node)
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
        log.did("Pad became padding of Conv", node)


def _spatial_zeros(node: ir.Node) -> list[int] | None:
    """Amounts before and behind each spatial axis, where that is all that the Pad does."""
    mode = node.attributes.get("mode")
    if mode is not None and (mode.is_ref() or mode.as_string() != "constant"):
        return None
    value = node.inputs[2] if len(node.inputs) > 2 else None
    filled = query.constant_array(value)
    if value is not None and (filled is None or filled.any()):
        return None
    found = query.constant_array(node.inputs[1]) if len(node.inputs) > 1 else None
    if found is None or (len(node.inputs) > 3 and node.inputs[3] is not None) or found.size < 6 or (found < 0).any():
        return None
    begins, ends = found.reshape(2, -1).tolist()
    return None if any(begins[:2] + ends[:2]) else [int(n) for n in begins[2:] + ends[2:]]


def _takes_padding(node: ir.Node, index: int) -> bool:
    if node.op_type != "Conv" or node.domain != "" or index != 0:
        return False
    settings = [node.attributes.get(name) for name in ("auto_pad", "pads")]
    if any(attribute is not None and attribute.is_ref() for attribute in settings):
        return False
    return settings[0] is None or settings[0].as_string() in ("NOTSET", "VALID")
