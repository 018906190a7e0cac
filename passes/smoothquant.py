"""Ranges of an activation's channels moved in part into the weights of the products that read it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from onnxqat.graph import walk
from onnxqat.passes import _channel_sources as sources
from onnxqat.passes import _layer_channels as layers
from onnxqat.passes import _linked_layers as linked
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log
from onnxqat.passes._inference import Inferred
from onnxqat.passes.cross_layer_equalization import EQUALIZED, NEGLIGIBLE, SMALLEST
from onnxqat.types import FloatArray


class SmoothQuant(Pass):
    """Channels that MatMul and Gemm read are divided by factors where they are made, and multiplied in the weights.

    Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models", ICML 2023.
    With X the activation and W the weights, channel j has the factor ``s_j = max|X_j|^alpha / max|W_j|^(1 - alpha)``:
    0 moves nothing of the activation's range, 1 all of it into the weights.

    1. The channels are made by LayerNormalization, RMSNormalization or onnxruntime's forms of these (scale and bias are
       divided), by a Mul with a constant row, and an Add of one behind it, which is how both are written out, or by a
       layer (its weight and bias are divided), with functions between that positive factors pass.
    2. All products that read the tensor get the same factors, by the largest weight of any; a Reshape to rows may come
       in front of them.
    3. The node that makes the channels is noted as equalized: the ranges hold no longer.
    4. Left alone, without a remark: tensors without ranges; those that something else reads or that are graph outputs;
       weights that are computed or read elsewhere.

    Tolerance: float rounding. ::

        n = LayerNormalization(x, gamma, beta)  q = MatMul(n, wq)  k = MatMul(n, wk)
        n = LayerNormalization(x, gamma / s, beta / s)  q = MatMul(n, wq * s)  k = MatMul(n, wk * s)

    Args:
        ranges: name of the tensor that the products read to the largest absolute value of each channel, shape (C,).
        alpha: the exponent, 0 to 1.
        tensors: names of the tensors that may be scaled; None: all with ranges.
    """

    def __init__(
        self, ranges: Mapping[str, FloatArray], *, alpha: float = 0.5, tensors: Collection[str] | None = None
    ) -> None:
        self._ranges, self._alpha, self._tensors = dict(ranges), alpha, tensors

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Scale; see the class."""
        log = Log()
        inferred = Inferred(model)
        for scope in walk.scopes(model):
            for link in links(scope, inferred):
                sizes = self._ranges.get(link.name)
                closed = self._tensors is not None and link.name not in self._tensors
                if sizes is None or closed or EQUALIZED in link.source.metadata_props:
                    continue
                factors = factors_of(link, sizes, self._alpha)
                if np.ptp(np.log(factors)) >= NEGLIGIBLE:
                    link.scale(factors, context.names)
                    link.source.metadata_props[EQUALIZED] = self.name
                    log.did("ranges of channels were moved into the weights of the products behind", *link.readers)
        return log.result()


def links(scope: walk.Scope, inferred: Inferred | None = None) -> Iterator[linked.Link]:
    """Tensors of `scope` that only products read, and whose channels a constant or a layer makes, in order."""
    yield from sources.find(scope, inferred)
    for found in linked.find(scope, inferred=inferred):
        if isinstance(found, linked.Link) and found.read_axis == -1:
            yield found


def factors_of(link: linked.Link, sizes: FloatArray, alpha: float) -> layers.Array:
    """``max|X_j|^alpha / max|W_j|^(1 - alpha)``, float64 (C,); what is next to nothing counts as :data:`SMALLEST`.

    Args:
        link: the tensor and its readers.
        sizes: largest absolute value of each channel, shape (C,).
        alpha: 0 to 1.
    """
    weights = np.maximum.reduce([layers.magnitudes(reader).max(axis=1).reshape(-1) for reader in link.readers])
    weights = weights.reshape(link.channels, link.repeat).max(axis=1)
    activations = np.asarray(sizes, np.float64).reshape(link.channels, -1).max(axis=1)
    if not weights.any() or not activations.any():
        return np.ones(link.channels)
    activations, weights = (np.maximum(each, each.max() * SMALLEST) for each in (activations, weights))
    return np.asarray(activations**alpha / weights ** (1 - alpha))
