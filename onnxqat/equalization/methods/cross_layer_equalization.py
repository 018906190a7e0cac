"""Cross-layer equalization where one scale has to suit channels of very different size, in weights or between layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxqat.equalization import method
from onnxqat.equalization.channel_ranges import spread
from onnxqat.equalization.method import Situation
from onnxqat.graph.layers import LAYERS
from onnxqat.passes import _layer_channels as layers
from onnxqat.passes import _linked_layers as linked
from onnxqat.passes._base import Pass
from onnxqat.passes.cross_layer_equalization import CrossLayerEqualization

TENSOR, WEIGHT = 8.0, 2.0
"""Largest channel over the geometric mean, from where on a tensor or a weight of one scale counts as uneven: the typical
channel has lost 3 bits, or 1. Few tensors of networks with scales per channel reach the first; after folding
BatchNormalization, weights with one scale that reach the second are where equalization was found to matter."""


MARGIN = 1.25
"""Largest value of a channel in other data, as a multiple of the largest seen; what a bound then cuts is an error."""


class Method(method.Method):
    """Runs :class:`~onnxqat.passes.cross_layer_equalization.CrossLayerEqualization` on the main graph.

    Where a layer's weight has one scale, its channels count beside those of the tensor behind it; without data they
    count alone. Where weights have a scale for each channel, only tensors are equalized. Behind weights with one scale, a
    channel that a Clip never cut in the data may grow until it would; what the Clip lets through sets the grid of that
    tensor, so that the weights alone count there.
    """

    def tensors(self, situation: Situation) -> Mapping[str, int]:
        """Tensors between linked layers, and behind the bounds in front of them; see the base class."""
        links = list(_links(situation))
        read = {link.name: link.read_axis for link in links if _reads_codes(link, situation)}
        return read | {_cut(link): link.axis for link in links if _has_room(link, situation)}

    def made(self, situation: Situation) -> Pass | None:
        """The pass for all links, where the channels of one differ widely; see the base class."""
        links = list(_links(situation))
        rooms = _rooms(links, situation)
        names = [link.name for link in links if _reads_codes(link, situation) and link.name not in rooms]
        per_channel = [op for op in LAYERS if situation.is_per_channel(op)]
        sizes = {name: each for name, each in situation.ranges.largest(names).items() if each.any()}
        sizes = {link.name: _of_channels(link, sizes[link.name]) for link in links if link.name in sizes}
        if not any(situation.asked or _is_uneven(link, sizes, situation) for link in links):
            return None
        # Where one is uneven, others are less so: all of them, by name, brought a MobileNetV1 5 dB with scales per channel.
        chosen = {link.name for link in links}
        ranges = sizes if situation.ranges.has_data else None
        return CrossLayerEqualization(
            ranges=ranges, tensors=chosen, per_channel=per_channel, bounds=_has_bounds(situation), rooms=rooms
        )


def _links(situation: Situation) -> Iterator[linked.Link]:
    """Links of the main graph whose ends are quantized, across bounds where those can follow or leave room."""
    for link in linked.find(situation.model.graph, bounded=True):
        if not isinstance(link, linked.Link):
            continue
        if link.is_bounded and not _has_bounds(situation) and not _has_room(link, situation):
            continue
        if all(_is_quantized(n, situation) for n in (link.source, *link.readers)):
            yield link


def _has_room(link: linked.Link, situation: Situation) -> bool:
    """Check whether data may tell that bounds leave room: to channels for whose sake weights with one scale lose bits."""
    if link.bounded_by is None or _has_bounds(situation) or not situation.ranges.has_data:
        return False
    return not all(situation.is_per_channel(node.op_type) for node in (link.source, *link.readers))


def _cut(link: linked.Link) -> str:
    """Name of the tensor behind the bounds of a link."""
    assert link.bounded_by is not None
    return str(link.bounded_by.outputs[0].name)


def _rooms(links: Sequence[linked.Link], situation: Situation) -> dict[str, layers.Array]:
    """Factors by which channels may grow, by the name of the tensor that the layers behind read."""
    bounded = [link for link in links if _has_room(link, situation)]
    found = situation.ranges.of([_cut(link) for link in bounded])
    ends = {link: found[_cut(link)] for link in bounded if _cut(link) in found}
    return {link.name: link.room(MARGIN * low, MARGIN * high) for link, (low, high) in ends.items()}


def _is_quantized(node: ir.Node, situation: Situation) -> bool:
    return situation.weight_type(node.op_type) is not None and not situation.chosen.reason(node)


def _reads_codes(link: linked.Link, situation: Situation) -> bool:
    """Check whether the tensor of a link is quantized, so that its channels share a scale."""
    return any(situation.input_type(reader.op_type) is not None for reader in link.readers)


def _is_uneven(link: linked.Link, sizes: Mapping[str, layers.Array], situation: Situation) -> bool:
    if link.name in sizes and spread(sizes[link.name]) >= TENSOR:
        return True
    if situation.is_per_channel(link.source.op_type):
        return False
    in_front = layers.magnitudes(link.source).max(axis=2).reshape(-1)
    behind = [_inputs(reader) for reader in link.readers if not situation.is_per_channel(reader.op_type)]
    return max(spread(in_front), *(spread(each) for each in behind), 1.0) >= WEIGHT


def _inputs(reader: ir.Node) -> layers.Array:
    return np.asarray(layers.magnitudes(reader).max(axis=1).reshape(-1))


def _of_channels(link: linked.Link, sizes: layers.Array) -> layers.Array:
    """Sizes of the channels of the source, where each reader's input sees several places of one."""
    return np.asarray(sizes.reshape(link.channels, -1).max(axis=1))


def _has_bounds(situation: Situation) -> bool:
    """Check whether a Clip may become Max and Min with bounds for each channel, which compilers do not fuse as they do it.

    That is for who asked for equalization by name, and where the table quantizes them.
    """
    return situation.asked and "Min" in situation.table.ops and "Max" in situation.table.ops
