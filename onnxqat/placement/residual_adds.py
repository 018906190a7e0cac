"""Results that a compiler adds to another tensor before it rounds anything: they carry no pair of their own."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import batchnorm
from onnxqat.placement.plan_builder import PlanBuilder
from onnxqat.types import TensorSpec

SHAPE_READERS = frozenset({"Shape", "Size"})


def leave_bare(draft: PlanBuilder) -> None:
    """Take the pair from one operand of every Add of two quantized tensors, where an operator of `summands` makes it.

    OpenVINO adds the other operand to a convolution's accumulator. Of a pair in between it keeps the clipping and drops
    the rounding (``dnnl_postops_composer.cpp``, "drop rounding one special residual pattern"). So a file with the pair
    states codes that are never computed, and the results of a deep residual network are several LSB away from it.

    Of two operands that qualify, the first loses its pair, as in ``graph_optimizer.cpp``; the other keeps it.
    """
    for graph in draft.graphs:
        for node in graph:
            index = next((i for i in (0, 1) if _is_added_to(draft, node, i)), None)
            if index is not None:
                del draft.wants[str(node.name), index], draft.tensors[str(_operand(node, index).name)]


def _operand(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value


def _is_added_to(draft: PlanBuilder, node: ir.Node, index: int) -> bool:
    if node.op_type != "Add" or any((str(node.name), i) not in draft.wants for i in (0, 1)):
        return False
    value, other = _operand(node, index), _operand(node, 1 - index)
    maker = value.producer()
    if maker is not None and batchnorm.is_kept(maker):  # it will be part of the layer
        maker = batchnorm.layer(maker)
    if maker is None or maker.op_type not in draft.backend.fused_residual_add:
        return False
    readers = [user for user, _ in value.uses() if user.op_type not in SHAPE_READERS]
    if value.is_graph_output() or len(readers) != 1 or _is_broadcast(value, other):
        return False
    tensor = draft.tensors[str(value.name)]
    return tensor.produced is not None and isinstance(tensor.produced[0], TensorSpec)


def _is_broadcast(first: ir.Value, second: ir.Value) -> bool:
    """Check whether the shapes are known to differ; unknown sizes (a Pad by a computed amount) do not count."""
    if first.shape is None or second.shape is None:
        return False
    if len(first.shape) != len(second.shape):
        return True
    sizes = zip(first.shape, second.shape, strict=True)
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes)
