"""A Reshape inserted into a deploy form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, walk


def insert(
    scope: walk.Scope, before: ir.Node, value: ir.Value, sizes: Sequence[int], names: build.Names, name: str
) -> ir.Value:
    """Insert a Reshape of `value` to `sizes` in front of the node `before`, and return its result.

    Args:
        scope: what holds `before`.
        before: the node that it stands in front of.
        value: the tensor.
        sizes: of the result, all known.
        names: of the model.
        name: what the names of the new tensors begin with.
    """
    made = names.fresh(f"{name}_reshaped")
    shape = build.constant(scope, names.fresh(f"{made}_sizes"), np.asarray(sizes, np.int64), before=before)
    node = build.node("Reshape", [value, shape], [made], dtype=value.dtype, shape=ir.Shape(sizes), name=made)
    scope.insert_before(before, node)
    return node.outputs[0]
