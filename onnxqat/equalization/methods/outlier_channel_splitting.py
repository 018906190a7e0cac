"""Splitting of the channels with the largest weights, or on data with the largest values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnxqat.equalization import method
from onnxqat.equalization.method import Situation
from onnxqat.passes import _linked_layers as linked
from onnxqat.passes import outlier_channel_splitting as splitting
from onnxqat.passes._base import Pass


class Method(method.Method):
    """Runs :class:`~onnxqat.passes.outlier_channel_splitting.OutlierChannelSplitting` on the main graph.

    Never by itself, since the network grows by the share of channels that is its value. Weights with one scale are split;
    where they have a scale for each channel, the activations in front of them are, if they have a scale.
    """

    def tensors(self, situation: Situation) -> Mapping[str, int]:
        """Inputs of layers with scales per channel; see the base class."""
        return {link.name: link.read_axis for link in _links(situation) if _splits_activation(link, situation)}

    def made(self, situation: Situation) -> Pass | None:
        """The pass for one of the two kinds, activations first; see the base class."""
        share = splitting.SHARE if situation.value is None else situation.value
        ranges = situation.ranges.largest(self.tensors(situation))
        if ranges:
            return splitting.OutlierChannelSplitting(share, ranges=ranges)
        weights = {link.name for link in _links(situation) if not _splits_activation(link, situation)}
        return splitting.OutlierChannelSplitting(share, tensors=weights) if weights else None


def _links(situation: Situation) -> Iterator[linked.Link]:
    """Links of the main graph that can be split, and whose ends are quantized."""
    for link in linked.find(situation.model.graph, bounded=True):
        if isinstance(link, linked.Link) and splitting.is_splittable(link):
            ends = (link.source, *link.readers)
            if all(situation.weight_type(n.op_type) is not None and not situation.chosen.reason(n) for n in ends):
                yield link


def _splits_activation(link: linked.Link, situation: Situation) -> bool:
    return any(
        situation.is_per_channel(reader.op_type) and situation.input_type(reader.op_type) is not None
        for reader in link.readers
    )
