"""BatchNormalization that training is to keep: which of them, and the advice to keep them."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.backends import schema
from onnxqat.errors import UsageError
from onnxqat.graph import batchnorm, query, walk
from onnxqat.passes import _base, _batchnorm_parts
from onnxqat.passes.keep_batchnorm import KeepBatchnorm
from onnxqat.passes.lift_constants import LiftConstants
from onnxqat.placement import batchnorms, table_overrides
from onnxqat.placement.table_overrides import NodeSelection
from onnxqat.types import Remark

FEW_BITS = 3
"""Up to here folded weights train badly: a ResNet-20 at 2 bits ends at 65 % after 200 steps, with what is kept at 84 %."""


def is_worth_it(model: ir.Model, table: schema.Backend, remarks: list[Remark]) -> bool:
    """Tell if weights are so narrow that a BatchNormalization which is folded now would be missed in training.

    Args:
        model: float model.
        table: backend table, user overrides applied.
        remarks: one is added where it is.
    """
    _, weights = table_overrides.type_roles(table)
    bits = min((table.types[name].qtype().bits for name in weights if table.types[name].observed), default=8)
    layers = [(n, batchnorm.layer(n)) for n in walk.nodes(model) if batchnorm.is_batchnorm(n)]
    nodes = tuple(query.label(n) for n, layer in layers if layer is not None and not batchnorms.refusal(table, layer))
    if bits > FEW_BITS or not nodes:
        return False
    text = f"BatchNormalization is kept, since weights of {bits} bits are trained: handoff folds it, or fold-batchnorm"
    remarks.append(Remark(text, nodes, "prepare"))
    return True


def keep(
    model: ir.Model,
    table: schema.Backend,
    chosen: NodeSelection,
    remarks: list[Remark],
    *,
    exact: bool,
    compute: bool,
    asked: bool = True,
) -> None:
    """Keep the BatchNormalizations of `model`, in place, that the weight scales of `table` can take up at deployment.

    Args:
        model: float model with closed initializers.
        table: backend table, user overrides applied.
        chosen: nodes that the user took out.
        remarks: what is found is added.
        exact: the user wants equal numbers, for which all are folded.
        compute: where weight scales cannot take one up, note it at its layer, for the graph to fold it.
        asked: the user asked for it; where it is a default, none that can be kept is no error.

    Raises:
        UsageError: ``option-invalid`` where none can be kept, for another reason than the user's choice of nodes.
    """
    found: dict[int, str] = {}

    def refusal(layer: ir.Node) -> str | None:
        reason = chosen.reason(layer) or batchnorms.refusal(table, layer) or (batchnorms.EXACT if exact else None)
        return found.get(id(layer), reason)

    remarks.extend(_base.rewrite(model, [LiftConstants()]).remarks)
    noted = False
    for scope, layer, node in _behind_layers(model) if compute else ():
        if refusal(layer) in batchnorms.OF_SCALES:
            reason = _batchnorm_parts.note(scope, node)
            noted |= reason is None
            found |= {} if reason is None else {id(layer): reason}
    remarks.extend(_base.rewrite(model, [KeepBatchnorm(refusal)]).remarks)
    if not asked or noted or any(map(batchnorm.is_kept, walk.nodes(model))):
        return
    of_user = {*chosen.left_out.values(), *chosen.outputs.values(), None}
    refused = [reason for _, layer, _ in _behind_layers(model) if (reason := refusal(layer)) not in of_user]
    if refused:
        raise UsageError(
            "option-invalid",
            f"no BatchNormalization can be kept for {table.backend}: {refused[0]}",
            hint="leave batch_norm at 'fold': the folded weights are trained, on the scales that will be deployed"
            + ("" if compute or refused[0] not in batchnorms.OF_SCALES else "; or keep it by `onnxqat insert-qdq`"),
        )


def _behind_layers(model: ir.Model) -> list[tuple[walk.Scope, ir.Node, ir.Node]]:
    """Scope, layer and BatchNormalization of each pair of the two."""
    found = ((scope, node) for scope in walk.scopes(model) for node in scope if batchnorm.is_batchnorm(node))
    return [(scope, layer, node) for scope, node in found if (layer := batchnorm.layer(node)) is not None]
