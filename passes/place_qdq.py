"""Insert the quantizers of a resolved plan."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxqat.errors import ModelError
from onnxqat.graph import build, edit, qdq, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.types import Placement


class PlaceQdq(Pass):
    """``tensor`` becomes ``tensor -> QuantizeLinear (-> Clip) -> DequantizeLinear`` for the consumers named.

    1. Without named consumers every reader of the tensor, in inner scopes too, reads the dequantized tensor.
    2. A graph output keeps its name: the dequantized tensor takes it, the float tensor is renamed to
       ``<name>_unquantized``.
    3. Quantizers of one group share the constants of the group's first quantizer.
    4. A consumer that already reads a quantizer with the same parameters is left alone, so that a second run changes
       nothing.

    The float function is changed: that is the purpose. Stripping the quantizers gives the float graph back.

    Before::

        agraph (float[N] x) => (float[N] y) { y = Relu(x) }

    After, with one placement on ``x``::

        agraph (float[N] x) => (float[N] y) <float x_scale, int8 x_zero_point> {
            x_quantized = QuantizeLinear(x, x_scale, x_zero_point)
            x_dequantized = DequantizeLinear(x_quantized, x_scale, x_zero_point)
            y = Relu(x_dequantized)
        }
    """

    def __init__(self, placements: Sequence[Placement]) -> None:
        self.placements = tuple(placements)

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        values = {str(v.name): (scope, v) for scope in walk.scopes(model) for v in walk.values(scope) if v.name}
        nodes = {str(n.name): n for n in walk.nodes(model) if n.name}
        parameters: dict[str, tuple[walk.Scope, qdq.Parameters]] = {}
        order = edit.Order(model)
        changed = False
        for placement in self.placements:
            if placement.tensor not in values:
                raise ModelError("pass-precondition", f"there is no tensor {placement.tensor!r} to quantize")
            scope, value = values[placement.tensor]
            uses = _uses(value, placement, nodes)
            whole = placement.consumers is None
            if (whole and _is_placed(value, placement)) or not (uses or (whole and value.is_graph_output())):
                continue
            changed = True
            self._insert(placement, scope, value, uses, parameters, context.names, order)
        return Rewrite(changed)

    def _insert(
        self,
        placement: Placement,
        scope: walk.Scope,
        value: ir.Value,
        uses: list[tuple[ir.Node, int]],
        parameters: dict[str, tuple[walk.Scope, qdq.Parameters]],
        names: build.Names,
        order: edit.Order,
    ) -> None:
        key = placement.group or f"{placement.tensor}\0{len(parameters)}"
        if key not in parameters or parameters[key][0] is not scope:
            parameters[key] = (
                scope,
                qdq.make_parameters(scope, names, placement.group or placement.tensor, placement.qparams),
            )
        source = value
        if placement.consumers is not None and uses and uses[0][0].inputs[uses[0][1]] is not value:
            read = uses[0][0].inputs[uses[0][1]]
            source = read if read is not None else value
        stamp = {build.CREATED_BY: self.name, build.RULE: placement.rule}
        if placement.qparams.scale_bits is not None:
            stamp[qdq.SCALE_BITS] = str(placement.qparams.scale_bits)
        producer = source.producer()
        output = qdq.insert_pair(
            source,
            parameters[key][1],
            placement.qparams,
            names,
            stamp,
            scope=scope,
            after=producer,
            before=order.first(scope, [n for n, _ in uses]) if producer is None else None,
            base=placement.tensor,
        )
        edit.rewire(uses, output)
        if placement.consumers is None and value.is_graph_output():
            edit.replace_output(scope, value, output)
            edit.take_over_name(names, value, output, "unquantized")


def _uses(value: ir.Value, placement: Placement, nodes: dict[str, ir.Node]) -> list[tuple[ir.Node, int]]:
    if placement.consumers is None:
        return [(node, index) for node, index in value.uses()]
    found = []
    for name, index in placement.consumers:
        node = nodes.get(name)
        if node is None or index >= len(node.inputs):
            raise ModelError("pass-precondition", f"there is no input {index} of a node {name!r} to quantize")
        read = node.inputs[index]
        producer = read.producer() if read is not None else None
        if producer is not None and qdq.is_dequantize(producer) and _has_parameters(producer, placement):
            continue
        found.append((node, index))
    return found


def _is_placed(value: ir.Value, placement: Placement) -> bool:
    """Whether all of `value` is quantized so: by what reads it or, at a graph output, by what gives it its name."""
    producer = value.producer()
    if producer is not None and qdq.is_dequantize(producer) and _has_parameters(producer, placement):
        return True
    return any(qdq.is_quantize(n) and _has_parameters(n, placement) for n, _ in value.uses())


def _has_parameters(node: ir.Node, placement: Placement) -> bool:
    scale = query.constant_array(node.inputs[1])
    return (
        scale is not None
        and scale.shape == placement.qparams.scale.shape
        and bool((scale == placement.qparams.scale).all())
    )
