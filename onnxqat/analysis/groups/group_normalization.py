"""GroupNormalization as exporters write it: an InstanceNormalization of groups between two Reshapes, and an affine part."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.analysis.groups import matching
from onnxqat.analysis.groups.group import Group
from onnxqat.graph import query


def match(instance: ir.Node) -> Group | None:
    """The GroupNormalization around `instance`, an InstanceNormalization of factor 1 and offset 0; None where it is none."""
    grouped = matching.made_by(instance.inputs[0], "Reshape")
    restored = matching.reader(instance.outputs[0], "Reshape")
    factors, offsets = (query.constant_array(v) for v in instance.inputs[1:3])
    if grouped is None or restored is None or factors is None or offsets is None:
        return None
    if (factors != 1).any() or offsets.any():
        return None
    nodes, parts = [grouped, instance, restored], list[ir.Value | None]()
    for op_type in ("Mul", "Add"):
        user = matching.reader(nodes[-1].outputs[0], op_type)
        constant = None if user is None else next((v for v in user.inputs if query.constant_tensor(v)), None)
        if user is None or constant is None:
            parts.append(None)
            continue
        nodes.append(user)
        parts.append(constant)
    attributes = {"epsilon": float(query.attribute(instance, "epsilon", 1e-5)), "num_groups": int(factors.size)}
    inputs = (grouped.inputs[0], *parts)
    return Group("GroupNormalization", tuple(nodes), inputs, nodes[-1].outputs[0], attributes=attributes)
