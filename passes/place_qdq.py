"""Insert the quantizers of a resolved plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import onnx_ir as ir

from onnxqat.errors import ModelError
from onnxqat.graph import build, edit, qdq, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._setting import Setting
from onnxqat.types import Placement


class PlaceQdq(Pass):
    """``tensor`` becomes ``tensor -> QuantizeLinear (-> Clip) -> DequantizeLinear`` for the consumers named.

    1. Without named consumers every reader of the tensor, in inner scopes too, reads the dequantized tensor.
    2. A graph output keeps its name: the dequantized tensor takes it, the float tensor is renamed to
       ``<name>_QuantizeLinear_Input``.
    3. Quantizers of one group share the constants of the group's first quantizer.
    4. Consumers named in a control-flow body get a pair there, since kernels are fused within one graph. The constants
       of pairs in several scopes lie in the main graph.
    5. With ``pairs="consumer"``, each reader of a tensor gets a pair of its own, with the tensor's constants.
    6. A consumer that already reads such a quantizer of its own scope is left alone, so that a second run changes
       nothing.

    The float function is changed: that is the purpose. Stripping the quantizers gives the float graph back.

    Before::

        agraph (float[N] x) => (float[N] y) { y = Relu(x) }

    After, with one placement on ``x``::

        agraph (float[N] x) => (float[N] y) <float x_scale, int8 x_zero_point> {
            x_QuantizeLinear_Output = QuantizeLinear(x, x_scale, x_zero_point)
            x_DequantizeLinear_Output = DequantizeLinear(x_QuantizeLinear_Output, x_scale, x_zero_point)
            y = Relu(x_DequantizeLinear_Output)
        }
    """

    def __init__(self, placements: Sequence[Placement], pairs: Literal["tensor", "consumer"] = "tensor") -> None:
        self.placements, self.pairs = tuple(placements), pairs

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Insert the quantizers of `setting`."""
        return cls(setting.placements, setting.table.pairs)

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        found = _Placing(model, self.placements, self.name, context.names, each=self.pairs == "consumer")
        changed = False
        for placement in self.placements:
            changed |= found.place(placement)
        return Rewrite(changed)


class _Placing:
    """One run: where tensors and nodes are, and the constants of each group."""

    def __init__(
        self, model: ir.Model, placements: Sequence[Placement], stamp: str, names: build.Names, *, each: bool
    ) -> None:
        self.each = each
        self.main, self.names, self.stamp = model.graph, names, stamp
        self.order = edit.Order(model)
        self.values: dict[str, tuple[walk.Scope, ir.Value]] = {}
        self.nodes: dict[str, ir.Node] = {}
        for scope in walk.scopes(model):  # a function body may repeat names of the main graph, which come first
            for value in walk.values(scope):
                self.values.setdefault(str(value.name or ""), (scope, value))
            for node in scope:
                self.nodes.setdefault(str(node.name or ""), node)
        self.parameters: dict[str, qdq.Parameters] = {}
        self.homes: dict[str, set[walk.Scope]] = {}
        for number, placement in enumerate(placements):
            self.homes.setdefault(_key(placement, number), set()).update(self._scopes(placement))
        self.numbers = {id(placement): number for number, placement in enumerate(placements)}

    def place(self, placement: Placement) -> bool:
        """Insert the pairs of one placement, one in each scope that reads it quantized; whether there was any to do."""
        scope, value = self._value(placement)
        if placement.consumers is None:
            readers = [(node, index) for node, index in value.uses()]
            if _is_placed(value, placement) or not (readers or value.is_graph_output()):
                return False
            if self.each and readers:
                for reader in readers[1:] if not value.is_graph_output() else readers:
                    self._insert(placement, scope, value, [reader], names_output=False)
                readers = [] if value.is_graph_output() else readers[:1]
            self._insert(placement, scope, value, readers)
            return True
        uses = _uses(placement, self.nodes)
        for reading in dict.fromkeys(walk.scope_of(node) for node, _ in uses):
            inside = [(node, index) for node, index in uses if walk.scope_of(node) is reading]
            for part in [[use] for use in inside] if self.each else [inside]:
                read = part[0][0].inputs[part[0][1]]
                self._insert(placement, reading, value if read is None else read, part)
        return bool(uses)

    def _value(self, placement: Placement) -> tuple[walk.Scope, ir.Value]:
        if placement.tensor not in self.values:
            raise ModelError("pass-precondition", f"there is no tensor {placement.tensor!r} to quantize")
        return self.values[placement.tensor]

    def _scopes(self, placement: Placement) -> set[walk.Scope]:
        if placement.consumers is None:
            return {self._value(placement)[0]}
        return {walk.scope_of(self.nodes[name]) for name, _ in placement.consumers if name in self.nodes}

    def _insert(
        self,
        placement: Placement,
        scope: walk.Scope,
        source: ir.Value,
        uses: list[tuple[ir.Node, int]],
        *,
        names_output: bool = True,
    ) -> None:
        """Insert one pair behind `source` for `uses`; behind a graph output the pair's result takes over its name."""
        stamp = {build.CREATED_BY: self.stamp, build.RULE: placement.rule}
        if placement.qparams.scale_bits is not None:
            stamp[qdq.SCALE_BITS] = str(placement.qparams.scale_bits)
        if placement.prescribed:
            stamp[qdq.PRESCRIBED] = "the backend's kernel"
        producer = source.producer()
        here = producer is not None and walk.scope_of(producer) is scope
        output = qdq.insert_pair(
            source,
            self._parameters(placement, scope),
            placement.qparams,
            self.names,
            stamp,
            scope=scope,
            after=producer if here else None,
            before=None if here else self.order.first(scope, [n for n, _ in uses]),
            base=placement.tensor,
        )
        edit.rewire(uses, output)
        if names_output and placement.consumers is None and source.is_graph_output():
            edit.replace_output(scope, source, output)
            edit.take_over_name(self.names, source, output, qdq.UNQUANTIZED)
            _drop_unproven_shape(source, output)

    def _parameters(self, placement: Placement, scope: walk.Scope) -> qdq.Parameters:
        """The constants of the placement's group: in the scope of its pairs, or where all their scopes see them."""
        key = _key(placement, self.numbers[id(placement)])
        if key not in self.parameters:
            home = scope if len(self.homes[key]) == 1 else self.main
            tensor = placement.group or placement.tensor
            self.parameters[key] = qdq.make_parameters(home, self.names, tensor, placement.qparams)
        return self.parameters[key]


def _drop_unproven_shape(source: ir.Value, output: ir.Value) -> None:
    """Let a result in front of its pair, and its codes, state no shape that the file's declaration alone says.

    A runtime does not go by the declared shape of an output, which may be wrong. Of any other tensor it does: onnxruntime
    gives it memory of that size. A shape follows from those of inputs, so where one is unknown, that of the result is
    declared.
    """
    maker = source.producer()
    if maker is not None and any(value is not None and value.shape is None for value in maker.inputs):
        made = [source, *(node.outputs[0] for node, _ in source.uses() if qdq.is_quantize(node))]
        for value in made:
            if value is not output:
                value.shape = None


def _key(placement: Placement, number: int) -> str:
    return placement.group or f"{placement.tensor}\0{number}"


def _uses(placement: Placement, nodes: dict[str, ir.Node]) -> list[tuple[ir.Node, int]]:
    """The named consumers that do not read such a pair of their own scope already."""
    found = []
    for name, index in placement.consumers or ():
        node = nodes.get(name)
        if node is None or index >= len(node.inputs):
            raise ModelError("pass-precondition", f"there is no input {index} of a node {name!r} to quantize")
        read = node.inputs[index]
        producer = query.producer(read)
        here = producer is not None and producer.graph is node.graph
        if producer is None or not here or not qdq.is_dequantize(producer) or not _has_parameters(producer, placement):
            found.append((node, index))
    return found


def _is_placed(value: ir.Value, placement: Placement) -> bool:
    """Check whether `value` is quantized so already: by a consumer or, at a graph output, by its producer."""
    producer = value.producer()
    if qdq.is_dequantize(producer) and _has_parameters(producer, placement):
        return True
    return any(qdq.is_quantize(n) and _has_parameters(n, placement) for n, _ in value.uses())


def _has_parameters(node: ir.Node, placement: Placement) -> bool:
    scale = query.constant_array(node.inputs[1])
    return (
        scale is not None
        and scale.shape == placement.qparams.scale.shape
        and bool((scale == placement.qparams.scale).all())
    )
