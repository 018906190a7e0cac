"""Sums and products that only normalizations in float read, such as the residual stream of a transformer."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.graph import data_movement
from onnxqat.ops import operators as ops

REASON = "only normalizations in float read it, so that no integer kernel gains by a coarse grid"
LIGHT = frozenset({"Add", "Sub", "Mul"})
NORMALIZATIONS = frozenset(
    {
        "LayerNormalization",
        "RMSNormalization",
        "SimplifiedLayerNormalization",
        "GroupNormalization",
        "InstanceNormalization",
        "MeanVarianceNormalization",
    }
)
SHAPE_READERS = frozenset({"Shape", "Size"})


def parts(graph: ir.Graph, kernels: Collection[str], written: Collection[ir.Node]) -> frozenset[ir.Node]:
    """Sums and products of which every reader is a normalization in float, or another of them.

    A normalization divides by the size of what it reads. The stream of a transformer has a few channels a hundred
    times as large as all others (Dettmers et al., 2022, arXiv:2208.07339), so that one scale for all of them leaves the
    others next to no codes. Where integer layers read the sum itself, as in a convolutional network, it stays
    quantized: there they gain.

    Args:
        graph: main graph.
        kernels: operators that the backend has a row for.
        written: nodes of normalizations that are written out.
    """
    ends = NORMALIZATIONS - set(kernels)
    found: set[ir.Node] = set()
    passing: set[ir.Node] = set()
    for node in reversed(list(dataflow.in_order(graph))):
        light = node.op_type in LIGHT and not node.domain and node not in written
        if not light and not _moves(node):
            continue
        readers = [user for user in node.successors() if user.op_type not in SHAPE_READERS]
        if readers and all(u in found or u in passing or u in written or u.op_type in ends for u in readers):
            (found if light else passing).add(node)
    return frozenset(found)


def _moves(node: ir.Node) -> bool:
    return data_movement.is_removed(node) or ops.is_passthrough(node)
