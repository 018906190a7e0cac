"""Layers that are linked by functions which positive factors pass, so that channels can be scaled against each other.

``f(u * s) = f(u) * s`` for every s > 0 holds of Relu, LeakyRelu, PRelu, of pools and of what only moves whole channels. So
the channels of the tensor between may be divided by factors in the weights in front and multiplied in those behind
(Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", ICCV 2019, section 4.1).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, edit, linear, query, walk
from onnxqat.passes import _layer_channels as layers
from onnxqat.passes._edits import exchange_constant, remove_with_constants
from onnxqat.passes._inference import Inferred
from onnxqat.placement.fusion_chains import clip_bounds

Sizes = tuple["int | None", ...]

ELEMENTWISE = frozenset({"Relu", "LeakyRelu", "PRelu", "Identity"})
POOLS = frozenset({"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})
FLATTENING = frozenset({"Flatten", "Reshape", "Squeeze"})

QUIETEST = 0.05
"""Share of a bound that a channel is taken to reach at least: what data have not switched on, others may."""

BOUNDED = "channels were not equalized across a Clip or a Min: it has one bound for all of them, and the table no Min"
SHARED = "channels were not equalized against a weight that is read elsewhere too"


@dataclasses.dataclass(frozen=True, eq=False)
class Link:
    """A tensor between layers whose channels may be scaled.

    Attributes:
        scope: where it is.
        source: node that makes the channels: a layer, or a normalization or product with constants of its own.
        constants: constants along the last axis that hold the channels' sizes, where `source` is no layer: nodes and
            numbers of inputs.
        channels: number of channels, C.
        axis: of the channels in what `source` makes, 1 or -1.
        through: the functions between.
        tensor: what the readers read.
        readers: layers that read it, and nothing else does.
        repeat: consecutive inputs of a reader that one channel becomes, where a Flatten is between.
    """

    scope: walk.Scope
    source: ir.Node
    constants: tuple[tuple[ir.Node, int], ...]
    channels: int
    axis: int
    through: tuple[ir.Node, ...]
    tensor: ir.Value
    readers: tuple[ir.Node, ...]
    repeat: int = 1

    @property
    def name(self) -> str:
        """Name of the tensor that the readers read."""
        return str(self.tensor.name)

    @property
    def read_axis(self) -> int:
        """Axis of the channels in that tensor."""
        return layers.channel_axis(self.readers[0])

    @property
    def is_bounded(self) -> bool:
        """Check whether a function between has bounds, which each channel would need its own of."""
        return any(_bounds(node) is not None for node in self.through)

    @property
    def bounded_by(self) -> ir.Node | None:
        """The function between that has bounds, where there is one and no more."""
        found = [node for node in self.through if _bounds(node) is not None]
        return found[0] if len(found) == 1 else None

    def room(self, low: layers.Array, high: layers.Array) -> layers.Array:
        """Factor by which each channel may grow before the bounds between cut it, float64 (C,); 1 of one that they cut.

        Args:
            low: smallest value of each channel behind :attr:`bounded_by`, shape (C,).
            high: largest value, likewise.
        """
        assert self.bounded_by is not None
        bounds = _bounds(self.bounded_by)
        assert bounds is not None
        room = np.full(self.channels, np.inf)
        for bound, ends in ((bounds[0], -low.astype(np.float64)), (-bounds[1], high.astype(np.float64))):
            if bound >= 0:
                if bound > 0:
                    return np.ones(self.channels)  # a bound beyond zero cuts what lies at zero, whatever its size is
                continue
            if math.isfinite(bound):
                room = np.minimum(room, -bound / np.maximum(ends, -bound * QUIETEST))
        return np.asarray(np.maximum(room, 1.0))

    def scale(self, factors: layers.Array, names: build.Names, *, keeps_bounds: bool = False) -> None:
        """Divide the channels at the source by `factors`, positive, shape (C,), and multiply them at the readers.

        Args:
            factors: of the channels.
            names: fresh names.
            keeps_bounds: bounds between stay as they are, since each channel has :meth:`room` for its factor.
        """
        if self.constants:
            for node, index in self.constants:
                array = query.constant_array(node.inputs[index])
                assert array is not None
                exchange_constant(self.scope, node, index, array / factors, names, "equalized")
        else:
            layers.scale_outputs(self.scope, self.source, 1.0 / factors, names)
        for node in self.through:
            bounds = _bounds(node)
            if bounds is not None and not keeps_bounds:
                _bound_by_channel(self, node, bounds, factors, names)
        for reader in self.readers:
            layers.scale_inputs(self.scope, reader, np.repeat(factors, self.repeat), names)


def find(
    scope: walk.Scope, *, bounded: bool = False, inferred: Inferred | None = None
) -> Iterator[Link | tuple[str, ir.Node]]:
    """Links of `scope` whose source is a layer, in order; or, where there is nearly one, why it is none, and the layer.

    Args:
        scope: the main graph, a subgraph or a function.
        bounded: also across a Clip with bounds, or a Min or Max with constants.
        inferred: shapes that the model does not state.
    """
    for node in list(scope):
        if not layers.is_layer(node) or layers.bias_row(node) is None:
            continue
        added = linear.bias_behind(node)
        if added is not None and layers.bias_of(node) is None:
            continue
        made = node.outputs[0] if added is None else added.outputs[0]
        found = follow(scope, node, made, layers.channel_axis(node), layers.outputs_of(node), (), inferred)
        if isinstance(found, Link) and found.is_bounded and not bounded:
            yield BOUNDED, node
        elif isinstance(found, str):
            yield found, node
        elif found is not None:
            yield found


def follow(
    scope: walk.Scope,
    source: ir.Node,
    made: ir.Value,
    axis: int,
    channels: int,
    constants: tuple[tuple[ir.Node, int], ...] = (),
    inferred: Inferred | None = None,
) -> Link | str | None:
    """The link that starts at `made`, where only layers read what becomes of it; the reason why not, if worth saying.

    Args:
        scope: where `source` is.
        source: what makes the channels.
        made: its result.
        axis: of the channels, 1 or -1.
        channels: their number.
        constants: as of :class:`Link`.
        inferred: as of :func:`find`.
    """
    value, repeat, through, link_axis = made, 1, list[ir.Node](), axis
    while True:
        uses = list(value.uses())
        if not uses or value.is_graph_output() or any(user.graph is not source.graph for user, _ in uses):
            return None
        users = [user for user, _ in uses]
        if any(layers.has_shared_weight(user) for user in users) and len(set(users)) == len(users):
            return SHARED
        readers = _readers(value, axis, inferred)
        if readers is not None:
            break
        if len(uses) != 1 or uses[0][1] not in (0, 1):
            return None
        step = _step(users[0], value, axis, uses[0][1], inferred)
        if step is None or (step[0] != link_axis and _bounds(users[0]) is not None):
            return None  # bounds of their own stand along the channels, which flattened ones have repeated
        axis, times = step
        repeat *= times
        through.append(users[0])
        value = users[0].outputs[0]
    fits = all(_reads_channels(node, read, axis, channels * repeat, repeat) for node, read in readers)
    if not fits or len({layers.channel_axis(node) for node, _ in readers}) != 1:
        return None
    return Link(
        scope, source, constants, channels, link_axis, tuple(through), value, tuple(n for n, _ in readers), repeat
    )


def _readers(
    value: ir.Value, axis: int, inferred: Inferred | None, *, rows: bool = True
) -> list[tuple[ir.Node, ir.Value]] | None:
    """The layers that read `value`, each with what it reads; None where something else does.

    Before a Gemm there may be a Reshape to rows, as onnxqat writes it: the last axis stays, and so do its channels.
    """
    found: list[tuple[ir.Node, ir.Value]] = []
    for user, index in value.uses():
        if index == 0 and layers.is_layer(user):
            found.append((user, value))
            continue
        if not rows or index or user.graph is not value.graph or not _makes_rows(user, value, axis, inferred):
            return None
        inner = None if user.outputs[0].is_graph_output() else _readers(user.outputs[0], axis, inferred, rows=False)
        if not inner:
            return None
        found += inner
    return found


def _makes_rows(node: ir.Node, value: ir.Value, axis: int, inferred: Inferred | None) -> bool:
    if node.op_type != "Reshape" or node.domain or axis != -1:
        return False
    wanted = query.constant_array(node.inputs[1])
    last, after = ((_shape(v, inferred) or (None,))[-1] for v in (value, node.outputs[0]))
    stated = int(wanted[-1]) if wanted is not None and wanted.size and wanted[-1] > 0 else after
    return last is not None and stated == last


def _reads_channels(node: ir.Node, value: ir.Value, axis: int, inputs: int, repeat: int) -> bool:
    if layers.inputs_of(node) != inputs:
        return False
    if layers.channel_axis(node) == 1:
        return axis == 1 and repeat == 1
    return axis == -1 or query.rank(value) == 2


def _step(node: ir.Node, value: ir.Value, axis: int, index: int, inferred: Inferred | None) -> tuple[int, int] | None:
    """Axis of the channels behind a function that factors pass, and how often each is repeated; None for others."""
    if node.domain or len(node.outputs) != 1:
        return None
    if node.op_type in ("Min", "Max"):
        other = query.constant_array(node.inputs[1 - index]) if len(node.inputs) == 2 else None
        return (axis, 1) if other is not None and other.size == 1 else None
    if index != 0:
        return None
    if node.op_type in ELEMENTWISE or (node.op_type == "Clip" and clip_bounds(node) is not None):
        return axis, 1
    if axis != 1:
        return None
    if node.op_type in POOLS or (node.op_type == "Pad" and _pads_space_with_zeros(node)):
        return axis, 1
    return _flattened(node, *(_shape(v, inferred) for v in (value, node.outputs[0])))


def _shape(value: ir.Value, inferred: Inferred | None) -> Sizes | None:
    if inferred is not None:
        return inferred.shape(value)
    return None if value.shape is None else tuple(d if isinstance(d, int) else None for d in value.shape)


def _flattened(node: ir.Node, shape: Sizes | None, after: Sizes | None) -> tuple[int, int] | None:
    """A matrix whose columns are the places of one channel after the other; so Flatten is, and many a Reshape."""
    if node.op_type not in FLATTENING or shape is None:
        return None
    if node.op_type == "Flatten" and query.attribute(node, "axis", 1) != 1:
        return None
    inner = [d for d in shape[2:] if d is not None]
    if len(shape) < 2 or len(inner) != len(shape) - 2:
        return None
    places = math.prod(inner)
    if node.op_type == "Flatten":
        return -1, places
    columns = after[1] if after is not None and len(after) == 2 else None
    return (-1, places) if columns is not None and shape[1] is not None and columns == places * shape[1] else None


def _pads_space_with_zeros(node: ir.Node) -> bool:
    """Channels stay apart, and what is padded is 0 or one of their own values."""
    if query.input_at(node, 3) is not None:
        return False
    pads = query.constant_array(node.inputs[1]) if len(node.inputs) > 1 else query.attribute(node, "pads", None)
    if query.input_at(node, 2) is not None:
        filler = query.constant_array(node.inputs[2])
        zero = filler is not None and not filler.any()
    else:
        zero = not query.attribute(node, "value", 0.0)
    if pads is None or (query.mode(node) == "constant" and not zero):
        return False
    sizes = np.asarray(pads).reshape(2, -1)
    return not sizes[:, :2].any()


def _bounds(node: ir.Node) -> tuple[float, float] | None:
    """Bounds of a function other than 0; None where it has none, and so commutes with factors."""
    if node.op_type in ("Min", "Max"):
        constant = next((a for v in node.inputs if (a := query.constant_array(v)) is not None), np.zeros(1))
        limit = float(constant.reshape(-1)[0])
        found = (-math.inf, limit) if node.op_type == "Min" else (limit, math.inf)
    elif node.op_type == "Clip":
        found = clip_bounds(node) or (-math.inf, math.inf)
    else:
        return None
    return None if all(bound == 0 or math.isinf(bound) for bound in found) else found


def _bound_by_channel(
    link: Link, node: ir.Node, bounds: tuple[float, float], factors: layers.Array, names: build.Names
) -> None:
    """Let Max and Min with a constant of each channel take the place of a Clip, Min or Max with bounds for all."""
    output, made = node.outputs[0], next(v for v in node.inputs if v is not None and query.constant_array(v) is None)
    steps: list[ir.Node] = []
    weight = query.constant_tensor(link.source.inputs[1])
    assert weight is not None
    rank = len(weight.shape)  # that of the tensor, where it is a convolution's
    for op_type, bound in (("Max", bounds[0]), ("Min", bounds[1])):
        if math.isinf(bound):
            continue
        if op_type == "Max" and bound == 0:
            step = build.node("Relu", [made], [names.fresh(f"{output.name}_lower")])
        else:
            shape = (-1,) if link.axis == -1 else (-1, *[1] * (rank - 2))
            each = build.constant(
                link.scope,
                names.fresh(f"{output.name}_{op_type.lower()}"),
                (bound / factors).reshape(shape),
                weight.dtype,
                before=node,
            )
            step = build.node(op_type, [made, each], [names.fresh(f"{output.name}_{op_type.lower()}imum")])
        made = step.outputs[0]
        made.type, made.shape = output.type, None if output.shape is None else output.shape.copy()
        step.name = names.fresh(f"{node.name or node.op_type}_{op_type.lower()}")
        step.metadata_props[build.CREATED_BY] = "cross-layer-equalization"
        steps.append(step)
    for step in steps:
        link.scope.insert_before(node, step)
    edit.rewire(output.uses(), made)
    remove_with_constants(node)
    name, output.name = output.name, None
    made.name = name
