"""Normalizations that are written out in elementary operators."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.analysis.groups import normalization


def parts(graph: ir.Graph) -> frozenset[ir.Node]:
    """Nodes of normalizations that are written out: mean, variance, root, division and the affine part behind it.

    Variances of rows differ by orders of magnitude and are divided by: one scale for all of them destroys the small ones.
    What else reads inside of them does not matter here.
    """
    found: set[ir.Node] = set()
    for node in dataflow.in_order(graph):
        group = normalization.match(node) if node.op_type in normalization.ROOTS and not node.domain else None
        if group is not None:
            found.update(group.nodes)
    return frozenset(found)
