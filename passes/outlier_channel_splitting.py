"""Channels with the largest weights split in two halves, so that the scale that all share becomes finer."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from onnxqat.graph import walk
from onnxqat.passes import _layer_channels as layers
from onnxqat.passes import _linked_layers as linked
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log
from onnxqat.passes._inference import Inferred
from onnxqat.types import FloatArray

SHARE = 0.02
"""Share of the channels that is added by default; in the paper 1 to 5 % bring most of what splitting brings."""

SPLIT = "onnxqat.split"  # on a layer that got further channels

BETWEEN = frozenset({"Relu", "LeakyRelu", "Identity", "Clip", "Min", "Max", "Pad", "Flatten", *linked.POOLS})
"""Functions of each channel alone, without constants or shapes of their own that count channels."""


class OutlierChannelSplitting(Pass):
    """The channels with the largest weights are there twice, with half of the weight each.

    Zhao et al., "Improving Neural Network Quantization without Retraining using Outlier Channel Splitting", ICML 2019.
    ``w * y = (w / 2) * y + (w / 2) * y``: the layer in front makes the channel twice, and the layers behind read both
    with half of its weights. With `ranges`, which splits activations, the layer in front makes halves, and the layers
    behind read both with all of its weights. The largest is split first, and what it left may be split again, until the
    share of channels is added. The network gets larger by that much.

    1. Layers are Conv, ConvTranspose, Gemm and MatMul without groups; between are Relu, LeakyRelu, Clip, pools, Pad with
       zeros, Flatten.
    2. A layer that got channels is noted, and gets no more.
    3. Left alone, without a remark: what cross-layer equalization leaves alone too, PRelu and Reshape, whose constants
       count channels, layers with groups.

    Tolerance: float rounding. ::

        x = Conv(v, w1, b)  y = Relu(x)  z = Conv(y, w2)
        x = Conv(v, [w1, w1[i]], [b, b[i]])  y = Relu(x)  z = Conv(y, [w2 with w2[i] / 2, w2[i] / 2])

    Args:
        share: of the channels of each tensor that is added, above 0, up to 1; one channel at least.
        ranges: name of the tensor that the layers behind read to the largest absolute value of each channel, shape (C,);
            None: weights are split.
        tensors: names of the tensors whose channels may be split; None: all.
    """

    def __init__(
        self,
        share: float = SHARE,
        *,
        ranges: Mapping[str, FloatArray] | None = None,
        tensors: Collection[str] | None = None,
    ) -> None:
        self._share, self._ranges, self._tensors = share, ranges, tensors

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Split; see the class."""
        log = Log()
        inferred = Inferred(model)
        for scope in walk.scopes(model):
            for link in linked.find(scope, bounded=True, inferred=inferred):
                if isinstance(link, linked.Link) and self._is_open(link):
                    self._split(link, context)
                    log.did("outlier channels of this layer were split", link.source)
        return log.result()

    def _is_open(self, link: linked.Link) -> bool:
        if SPLIT in link.source.metadata_props or not is_splittable(link):
            return False
        if self._ranges is not None and link.name not in self._ranges:
            return False
        return self._share > 0 and (self._tensors is None or link.name in self._tensors)

    def _split(self, link: linked.Link, context: Context) -> None:
        sizes = largest_weights(link)
        if self._ranges is not None:
            sizes = np.asarray(self._ranges[link.name], np.float64).reshape(link.channels, -1).max(axis=1)
        origins, factors = halves(sizes, max(1, math.ceil(self._share * link.channels)))
        whole = np.ones(len(origins))
        front, behind = (whole, factors) if self._ranges is None else (factors, whole)
        row = layers.bias_row(link.source)
        assert row is not None
        if layers.bias_of(link.source) is not None:  # it is found by the size of the weight, so it comes first
            layers.set_bias(link.scope, link.source, row[origins] * front, context.names)
        layers.take_channels(link.scope, link.source, context.names, outputs=(origins, front))
        places = (origins[:, None] * link.repeat + np.arange(link.repeat)).reshape(-1)
        for reader in link.readers:
            layers.take_channels(link.scope, reader, context.names, inputs=(places, np.repeat(behind, link.repeat)))
        _widen(link, len(origins))
        link.source.metadata_props[SPLIT] = self.name


def is_splittable(link: linked.Link) -> bool:
    """Check whether nothing but the layers of a link counts its channels."""
    direct = all(reader.inputs[0] is link.tensor for reader in link.readers)
    whole = all(layers.unfolded_shape(node)[0] == 1 for node in (link.source, *link.readers))
    return direct and whole and all(node.op_type in BETWEEN for node in link.through)


def largest_weights(link: linked.Link) -> layers.Array:
    """The largest weight behind of each channel of a link, float64 (C,)."""
    each = [layers.magnitudes(reader).max(axis=(0, 1)) for reader in link.readers]
    return np.asarray(np.maximum.reduce(each).reshape(link.channels, link.repeat).max(axis=1))


def halves(sizes: layers.Array, count: int) -> tuple[np.ndarray, layers.Array]:
    """Origins of all channels and their factors, after the largest was halved `count` times.

    Args:
        sizes: of the channels, shape (C,).
        count: of channels to add.

    Returns:
        Numbers of the channels that were there before, int64 (C + count,), and powers of two, float64 (C + count,).
    """
    origins, factors = list(range(len(sizes))), [1.0] * len(sizes)
    for _ in range(count):
        place = int(np.argmax(sizes[origins] * np.asarray(factors)))
        factors[place] /= 2
        origins.append(origins[place])
        factors.append(factors[place])
    return np.asarray(origins), np.asarray(factors)


def _widen(link: linked.Link, channels: int) -> None:
    """State the new number of channels in the shapes of the tensors between."""
    made = [link.source.outputs[0]]
    place = layers.bias_of(link.source)
    if place is not None and place[0] is not link.source:
        made.append(place[0].outputs[0])
    axis, times = link.axis, 1
    for value in (*made, *(node.outputs[0] for node in link.through)):
        producer = value.producer()
        if producer is not None and producer.op_type == "Flatten":
            axis, times = -1, link.repeat
        if value.shape is not None:
            dimensions = list(value.shape)
            dimensions[axis] = channels * times
            value.shape = ir.Shape(dimensions)
