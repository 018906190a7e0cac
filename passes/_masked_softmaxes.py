"""Softmaxes of scores to which a mask of whole numbers is added, as operators of codes and of the mask's own pair."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from onnxqat.analysis import kept_places
from onnxqat.analysis.kept_places import Kept
from onnxqat.graph import build, qdq, query, walk

LEFT = "the mask that is added to its scores is not made of whole numbers"


@dataclasses.dataclass
class Masks:
    """Pairs of the masks of a model, each made once.

    Attributes:
        names: of the model.
    """

    names: build.Names
    _made: dict[tuple[ir.Value, str], ir.Value] = dataclasses.field(default_factory=dict)

    def operands(self, softmax: ir.Node, storage: str) -> tuple[ir.Node, ir.Value, ir.Value] | None:
        """Return the Add in front of `softmax`, its dequantized scores, and the pair of its mask, 1 for what is kept."""
        found = scores_of(softmax)
        if found is None:
            return None
        added, scores, mask = found
        kept = kept_places.of_mask(mask)
        if kept is None:
            return None
        key = (mask, storage)
        if key not in self._made:
            self._made[key] = self._pair(kept, storage, added)
        return added, scores, self._made[key]

    def _pair(self, kept: Kept, storage: str, before: ir.Node) -> ir.Value:
        """Write the kept places as codes 0 and 1 of scale 1 before `before`, and return them dequantized."""
        scope, names, nodes = walk.scope_of(before), self.names, list[ir.Node]()

        def after(op_type: str, value: ir.Value, kind: ir.DataType, **attributes: int) -> ir.Value:
            name = names.fresh(f"{kept.root.name}_kept")
            nodes.append(build.node(op_type, [value], [name], attributes, dtype=kind, shape=value.shape, name=name))
            return nodes[-1].outputs[0]

        value = after("Cast", kept.root, ir.DataType.BOOL, to=int(ir.DataType.BOOL))
        if kept.inverted:
            value = after("Not", value, ir.DataType.BOOL)
        for move in kept.moves:
            name = names.fresh(f"{move.outputs[0].name}_kept")
            attributes = {key: query.attribute(move, key, None) for key in move.attributes}
            inputs = [value, *move.inputs[1:]]
            shape = move.outputs[0].shape
            nodes.append(
                build.node(move.op_type, inputs, [name], attributes, dtype=value.dtype, shape=shape, name=name)
            )
            value = nodes[-1].outputs[0]
        value = after("Cast", value, ir.DataType.FLOAT, to=int(ir.DataType.FLOAT))
        code = ir.DataType[storage.upper()]
        constants = [
            build.constant(scope, names.fresh(f"{value.name}_scale"), np.ones((), np.float32), before=before),
            build.constant(scope, names.fresh(f"{value.name}_zero_point"), np.zeros((), storage), before=before),
        ]
        for op_type, kind, suffix in (
            (qdq.QUANTIZE, code, qdq.CODES),
            (qdq.DEQUANTIZE, ir.DataType.FLOAT, qdq.DEQUANTIZED),
        ):
            read = value if op_type == qdq.QUANTIZE else nodes[-1].outputs[0]
            name = names.fresh(f"{value.name}_{suffix}")
            nodes.append(build.node(op_type, [read, *constants], [name], dtype=kind, shape=value.shape, name=name))
        scope.insert_before(before, nodes)
        return nodes[-1].outputs[0]

    def remove_unread(self) -> None:
        """Remove the DequantizeLinear of each mask, which calls read by its codes, and all of it where none does."""
        for value in self._made.values():
            here: ir.Value | None = value
            while here is not None and not query.is_used(here):
                node = here.producer()
                if node is None or node.graph is None:
                    break
                here = node.inputs[0]
                walk.scope_of(node).remove(node, safe=True)
        for mask, _ in self._made:
            drop_computed(mask)


def scores_of(softmax: ir.Node) -> tuple[ir.Node, ir.Value, ir.Value] | None:
    """Return the Add in front of `softmax`, which alone reads it, its dequantized operand and its other one."""
    added = softmax.inputs[0]
    node = query.producer(added)
    if added is None or node is None or node.domain or node.op_type != "Add":
        return None
    if query.reads(added) != 1 or added.is_graph_output():
        return None
    for scores, mask in (node.inputs, node.inputs[::-1]):
        maker = query.producer(scores)
        if scores is not None and mask is not None and qdq.is_dequantize(maker):
            return node, scores, mask
    return None


def drop_computed(value: ir.Value) -> None:
    """Remove what computes `value`, a mask, as far as nothing reads it any more."""
    node = value.producer()
    if node is None or query.is_used(value) or node.graph is None:
        return
    inputs = [given for given in node.inputs if given is not None]
    walk.scope_of(node).remove(node, safe=True)
    for given in inputs:
        drop_computed(given)
