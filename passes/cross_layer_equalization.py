"""Channels between two layers scaled so that the weights in front and behind, or the tensor between, suit one scale."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxqat.graph import walk
from onnxqat.passes import _layer_channels as layers
from onnxqat.passes import _linked_layers as linked
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log
from onnxqat.passes._inference import Inferred

SWEEPS = 50
"""Rounds over all links at most; neighbours move each other's factors less each time, in long chains to a third or so."""

SETTLED = 1e-3
"""Largest change of a factor, as a natural logarithm, with which the rounds end."""

NEGLIGIBLE = 0.02
"""Factors that are all within 2 % of each other change no code worth naming, and are left out: a second run ends here."""

SMALLEST = 1e-4
"""Size of a channel, relative to the largest, below which it counts as that small: what a folded BatchNormalization has
switched off need not fill the grid, and its factor would blow up its bias."""

EQUALIZED = "onnxqat.equalized"  # on a layer whose channels were scaled by ranges of the data: they no longer hold

_Weights = dict[ir.Node, layers.Array]


class CrossLayerEqualization(Pass):
    """Channels of a tensor between layers are divided by factors in front and multiplied by them behind.

    Cross-layer equalization (Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction",
    ICCV 2019, section 4.1). With r1 and r2 the largest weights of a channel in front and behind, the factor is
    ``s = sqrt(r1 r2) / r2``, after which both are ``sqrt(r1 r2)``. All tensors are gone over until nothing moves, which
    settles chains of any length (Conv, depthwise Conv, Conv) as the paper's formula for three does.

    1. Layers are Conv, ConvTranspose, grouped and depthwise too, Gemm, and MatMul with a constant matrix, with an Add of
       a bias or without. Several layers may read the tensor.
    2. Between are Relu, LeakyRelu, PRelu, Identity, pools, Pad with zeros, and Flatten or Reshape to the rows of a
       Gemm. With `bounds`, a Clip, Min or Max with constants becomes Max and Min with a constant for each channel. With
       `rooms` it stays as it is: a channel that it never cuts may grow until it would, and one that it cuts keeps its
       size.
    3. With ranges of the tensor on data, a channel is as large as its share of the largest of the tensor or of the
       weight in front, whichever is more: neither may then stand out. The layer is noted as equalized.
    4. Weights with a scale for each output channel follow any factor in front, and count as a share of their row's
       largest behind; a depthwise filter follows the factors wholly. Without ranges there is nothing to equalize.
    5. Left alone: a tensor that something else reads or that is a graph output; weights that are read elsewhere or are
       not constant; channels without any weight on a side (factor 1); tensors whose channels are alike. Clip and shared
       weights are said so.

    Tolerance: float rounding. ::

        a = Conv(x, w1, b)  r = Relu(a)  y = Conv(r, w2)
        a = Conv(x, w1 / s, b / s)  r = Relu(a)  y = Conv(r, w2 * s)

    Args:
        ranges: name of the tensor that the layers behind read to the largest absolute value of each channel, shape (C,);
            None: by the weights alone.
        tensors: names of the tensors that may be scaled; None: all.
        per_channel: operators whose weights have a scale for each output channel.
        bounds: scale across bounds that are one for all channels, too.
        rooms: name of the tensor that the layers behind read to how many times larger each channel may become before the
            bounds in front of it cut what they did not, shape (C,) (:meth:`~onnxqat.passes._linked_layers.Link.room`).
    """

    def __init__(
        self,
        *,
        ranges: Mapping[str, layers.Array] | None = None,
        tensors: Collection[str] | None = None,
        per_channel: Collection[str] = (),
        bounds: bool = False,
        rooms: Mapping[str, layers.Array] | None = None,
    ) -> None:
        self._ranges, self._tensors, self._rooms = ranges, tensors, rooms or {}
        self._per_channel, self._bounds = frozenset(per_channel), bounds

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Equalize; see the class."""
        log = Log()
        flattens = any(node.op_type in linked.FLATTENING for node in walk.nodes(model))
        inferred = Inferred(model) if flattens else None
        for scope in walk.scopes(model):
            links = self._links(scope, inferred, log)
            all_factors = settled(links, self._ranges, self._per_channel, self._rooms)
            for link, factors in zip(links, all_factors, strict=True):
                if np.ptp(np.log(factors)) < NEGLIGIBLE:
                    continue
                link.scale(factors, context.names, keeps_bounds=link.name in self._rooms)
                if self._ranges is not None:
                    link.source.metadata_props[EQUALIZED] = self.name
                log.did("channels were equalized between this layer and those behind it", link.source)
        return log.result()

    def _links(self, scope: walk.Scope, inferred: Inferred | None, log: Log) -> list[linked.Link]:
        links = []
        for found in linked.find(scope, bounded=self._bounds or bool(self._rooms), inferred=inferred):
            if not isinstance(found, linked.Link):
                log.left(*found)
            elif found.is_bounded and not self._bounds and found.name not in self._rooms:
                log.left(linked.BOUNDED, found.source)
            elif self._is_open(found):
                links.append(found)
        return links

    def _is_open(self, link: linked.Link) -> bool:
        done = self._ranges is not None and EQUALIZED in link.source.metadata_props
        return not done and (self._tensors is None or link.name in self._tensors)


def settled(
    links: Sequence[linked.Link],
    ranges: Mapping[str, layers.Array] | None,
    per_channel: Collection[str],
    rooms: Mapping[str, layers.Array],
) -> list[layers.Array]:
    """Factors of each of `links`, float64 (C,), with which no further round changes anything.

    Args:
        links: of one scope.
        ranges: as of :class:`CrossLayerEqualization`.
        per_channel: likewise.
        rooms: likewise.
    """
    weights = {node: layers.magnitudes(node) for link in links for node in (link.source, *link.readers)}
    sizes = {link: np.asarray(ranges[link.name], np.float64) for link in links if ranges and link.name in ranges}
    total = [np.ones(link.channels) for link in links]
    for _ in range(SWEEPS):
        moved = 0.0
        for number, link in enumerate(links):
            factors = _factors(link, weights, sizes.get(link), per_channel)
            if factors is None:
                continue
            if link.name in rooms:
                factors = _within(rooms[link.name], total[number] * factors) / total[number]
            moved = max(moved, float(np.abs(np.log(factors)).max(initial=0.0)))
            total[number] *= factors
            if link in sizes:
                sizes[link] = sizes[link] / factors
            _apply(link, factors, weights)
        if moved < SETTLED:
            break
    return total


def _within(room: layers.Array, factors: layers.Array) -> layers.Array:
    """Factors that let no channel grow beyond its room; one that has none keeps its size, also downwards.

    A channel that a bound cuts, made smaller, would be cut later.
    """
    return np.asarray(np.where(room <= 1, 1.0, np.maximum(factors, 1 / room)))


def _apply(link: linked.Link, factors: layers.Array, weights: _Weights) -> None:
    groups = len(weights[link.source])
    weights[link.source] = weights[link.source] / factors.reshape(groups, -1, 1)
    for reader in link.readers:
        groups = len(weights[reader])
        weights[reader] = weights[reader] * np.repeat(factors, link.repeat).reshape(groups, 1, -1)


def _factors(
    link: linked.Link, weights: _Weights, size: layers.Array | None, per_channel: Collection[str]
) -> layers.Array | None:
    """Factors of one link as weights and tensor are now; None where every scale follows its channel."""
    front = [] if link.source.op_type in per_channel else [weights[link.source].max(axis=2).reshape(-1)]
    front += [] if size is None else [size]
    if not front:
        return None
    first = front[0] if len(front) == 1 else np.maximum.reduce([_share(each) for each in front])
    seconds = [_behind(reader, weights[reader], link, per_channel) for reader in link.readers]
    counted = [each for each in seconds if each is not None]
    second = np.maximum.reduce(counted) if counted else None
    live = (first > 0) if second is None else (first > 0) & (second > 0)
    if not live.any():
        return None
    first = np.maximum(first, first.max() * SMALLEST)
    factors = first if second is None else np.sqrt(first / np.maximum(second, second.max() * SMALLEST))
    if len(front) > 1 or link.source.op_type in per_channel or second is None:
        factors = factors / np.exp(np.log(factors[live]).mean())  # shares have no unit: what is common to all stays
    return np.where(live, factors, 1.0)


def _behind(
    reader: ir.Node, weight: layers.Array, link: linked.Link, per_channel: Collection[str]
) -> layers.Array | None:
    """Size of each channel in the weight of a reader, (C,); None where its scales follow each channel."""
    if reader.op_type in per_channel:
        if weight.shape[2] == 1:
            return None
        weight = weight / np.maximum(weight.max(axis=2, keepdims=True), np.finfo(np.float64).tiny)
    return np.asarray(weight.max(axis=1).reshape(link.channels, link.repeat).max(axis=1))


def _share(sizes: layers.Array) -> layers.Array:
    largest = sizes.max(initial=0.0)
    return sizes / largest if largest > 0 else sizes
