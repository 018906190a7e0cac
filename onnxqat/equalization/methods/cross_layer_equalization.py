"""Cross-layer equalization where one scale has to suit channels of very different size, in weights or between layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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


class Method(method.Method):
    """Runs :class:`~onnxqat.passes.cross_layer_equalization.CrossLayerEqualization` on the main graph.

    Where a layer's weight has one scale, its channels count beside those of the tensor behind it; without data they
    count alone. Where weights have a scale for each channel, only tensors are equalized.
    """

    def tensors(self, situation: Situation) -> Mapping[str, int]:
        """Tensors between linked layers; see the base class."""
        return {link.name: link.read_axis for link in _links(situation) if _reads_codes(link, situation)}

    def made(self, situation: Situation) -> Pass | None:
        """The pass for all links, where the channels of one differ widely; see the base class."""
        links = list(_links(situation))
        names = [link.name for link in links if _reads_codes(link, situation)]
        per_channel = [op for op in LAYERS if situation.is_per_channel(op)]
        sizes = {name: each for name, each in situation.ranges.largest(names).items() if each.any()}
        sizes = {link.name: _of_channels(link, sizes[link.name]) for link in links if link.name in sizes}
        if not any(situation.asked or _is_uneven(link, sizes, situation) for link in links):
            return None
        # Where one is uneven, others are less so: all of them, by name, brought a MobileNetV1 5 dB with scales per channel.
        chosen = {link.name for link in links}
        ranges = sizes if situation.ranges.has_data else None
        return CrossLayerEqualization(
            ranges=ranges, tensors=chosen, per_channel=per_channel, bounds=_has_bounds(situation)
        )


def _links(situation: Situation) -> Iterator[linked.Link]:
    """Links of the main graph whose ends are quantized."""
    for link in linked.find(situation.model.graph, bounded=_has_bounds(situation)):
        if isinstance(link, linked.Link) and all(_is_quantized(n, situation) for n in (link.source, *link.readers)):
            yield link


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
