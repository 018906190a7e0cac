"""Channel permutations name their axis from the back."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat.graph import query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log
from onnxqat.passes._setting import Setting

_CHANNELS = 1


class PermuteFromBack(Pass):
    """A Gather that puts channels into another order names their axis from the back.

    OpenVINO (seen with 2026.4) drops a Gather along axis 1 whose constant indices are a permutation, where a Conv reads
    it, behind elementwise operators too, and reorders the input channels of the weight by those indices. Right is their
    inverse: with and without pairs the result is wrong for each permutation that is not its own. A Gather along axis -3
    is the same one, and is computed as it is written.

    Left alone: indices that are computed, no list, no permutation or their own inverse; a tensor whose number of axes
    is not known.

    Tolerance: none. ::

        y = Gather<axis = 1>(x, {2, 0, 1})
        y = Gather<axis = -3>(x, {2, 0, 1})
    """

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run for tables that state `permute_from_back`."""
        return cls() if setting.table.permute_from_back else None

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Count the axes of those nodes from the back; see the class."""
        log = Log()
        for node in walk.nodes(model):
            if node.op_type != "Gather" or node.domain or query.takes_arguments(node):
                continue
            rank = query.rank(node.inputs[0])
            if rank is not None and query.attribute(node, "axis", 0) == _CHANNELS and _is_turned(node.inputs[1]):
                node.attributes["axis"] = ir.AttrInt64("axis", _CHANNELS - rank)
                log.did("a permutation of channels names its axis from the back", node)
        return log.result()


def _is_turned(indices: ir.Value | None) -> bool:
    """Check whether `indices` are a constant permutation whose inverse is another one."""
    stored = query.constant_array(indices)
    if stored is None or stored.ndim != 1:
        return False
    order = np.where(stored < 0, stored + stored.size, stored)
    inverse = np.argsort(order)
    # Of a permutation the sorted indices are all positions; a swap of two channels is right either way round.
    return bool((order[inverse] == np.arange(order.size)).all() and (order != inverse).any())
