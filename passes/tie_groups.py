"""Let tied quantizers share one scale and one zero point."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxqat.errors import ModelError
from onnxqat.graph import edit, qdq
from onnxqat.graph.quantizer import Quantizer
from onnxqat.passes._base import Context, Pass, Rewrite


class TieGroups(Pass):
    """The quantizers of each group of tensors read the constants of the group's first quantizer.

    1. All quantizers of a group must lie in one scope, on one grid and with one axis; otherwise the pass refuses.
    2. Values differ: the first one's parameters win. The function of the quantized model changes by what the others
       lose; ranges should be merged before parameters are computed.
    3. Constants that nothing reads any more are removed.

    Before::

        a_q = QuantizeLinear(a, a_scale, a_zero_point)
        b_q = QuantizeLinear(b, b_scale, b_zero_point)

    After ``TieGroups([["a", "b"]])``::

        a_q = QuantizeLinear(a, a_scale, a_zero_point)
        b_q = QuantizeLinear(b, a_scale, a_zero_point)
    """

    def __init__(self, groups: Sequence[Sequence[str]]) -> None:
        self.groups = tuple(tuple(group) for group in groups)

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        by_tensor: dict[str, list[Quantizer]] = {}
        for quantizer in qdq.quantizers(model):
            by_tensor.setdefault(quantizer.tensor, []).append(quantizer)
        changed = False
        for group in self.groups:
            members = [q for tensor in group for q in by_tensor.get(tensor, ())]
            for member in members[1:]:
                changed |= _tie(members[0], member)
        if not changed:
            return Rewrite(False)
        edit.remove_unused(model)
        return Rewrite(True)


def _tie(first: Quantizer, other: Quantizer) -> bool:
    same_grid = first.qparams.qtype == other.qparams.qtype and first.qparams.axis == other.qparams.axis
    if not same_grid or first.nodes[0].graph is not other.nodes[0].graph:
        raise ModelError(
            "pass-precondition", f"{first.tensor!r} and {other.tensor!r} cannot be tied: grid, axis or scope differ"
        )
    source = first.nodes[0]
    changed = False
    for node in other.nodes:
        if node is other.clip:
            continue
        for index in (1, 2):
            if index < len(source.inputs) and node.inputs[index] is not source.inputs[index]:
                node.replace_input_with(index, source.inputs[index])
                changed = True
    return changed
