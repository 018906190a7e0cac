"""Channels that products read scaled by factors that were searched for, so that weights alone lose less."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxqat.graph import walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log
from onnxqat.passes._inference import Inferred
from onnxqat.passes.cross_layer_equalization import EQUALIZED, NEGLIGIBLE
from onnxqat.passes.smoothquant import links
from onnxqat.types import FloatArray


class Awq(Pass):
    """Weights that meet large activations are scaled up, and the channels that they are multiplied with down.

    Lin et al., "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration", MLSys 2024. Where weights
    alone are quantized, those that meet large activations cost most; multiplied by a factor above 1 they are rounded
    on a finer grid, relative to their size. The factors come from a search (:mod:`onnxqat.equalization.methods.awq`); the
    places are those of :class:`~onnxqat.passes.smoothquant.SmoothQuant`, and so is what is left alone.

    1. The node that makes the channels is noted as equalized, and is not scaled again.

    Tolerance: float rounding. ::

        n = LayerNormalization(x, gamma, beta)  q = MatMul(n, w)
        n = LayerNormalization(x, gamma / s, beta / s)  q = MatMul(n, w * s)

    Args:
        factors: name of the tensor that the products read to s of each channel, above 0, shape (C,).
    """

    def __init__(self, factors: Mapping[str, FloatArray]) -> None:
        self._factors = dict(factors)

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Scale; see the class."""
        log = Log()
        inferred = Inferred(model)
        for scope in walk.scopes(model):
            for link in links(scope, inferred):
                factors = self._factors.get(link.name)
                if factors is None or EQUALIZED in link.source.metadata_props:
                    continue
                if np.ptp(np.log(factors)) >= NEGLIGIBLE:
                    link.scale(np.asarray(factors, np.float64), context.names)
                    link.source.metadata_props[EQUALIZED] = self.name
                    log.did(
                        "channels were scaled so that the weights that meet large activations lose less", *link.readers
                    )
        return log.result()
