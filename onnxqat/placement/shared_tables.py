"""Tables of a Gather that a layer reads as its weight too: one constant on one grid, shipped once."""

from __future__ import annotations

from onnxqat.graph import query
from onnxqat.placement.plan_builder import PlanBuilder
from onnxqat.types import TensorSpec


def read_quantized(draft: PlanBuilder) -> None:
    """Let a Gather read the table that a layer has as its quantized weight, such as tied embeddings, with those parameters.

    In float it would need the constant in float beside the codes. Tables of weights alone keep it so: MatMulNBits packs
    codes in a form of its own, and a table in blocks would be dequantized as a whole for a few rows.
    """
    if not any(slot.use and slot.axis is None for row in draft.backend.ops.values() for slot in row.inputs):
        return
    for tensor in draft.tensors.values():
        specs = [d for d in tensor.wanted if isinstance(d, TensorSpec) and d.role == "weight"]
        if len(specs) != 1 or len(tensor.wanted) != 1 or query.constant_tensor(tensor.value) is None:
            continue
        for user, index in tensor.value.uses():
            picks = user.op_type == "Gather" and not user.domain and index == 0
            reads_float = (str(user.name), index) not in tensor.wanted[specs[0]]
            if picks and reads_float and draft.selection.reason(user) is None:
                draft.want(user, index, specs[0], "Gather reads the weight of a layer as its table")
