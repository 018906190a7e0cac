"""Channels that lie far above zero lowered, and what they lose given to the bias of the layers behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from onnxqat.graph import query, walk, windows
from onnxqat.graph.batchnorm import is_batchnorm
from onnxqat.graph.layers import CONVOLUTIONS
from onnxqat.passes import _layer_channels as layers
from onnxqat.passes import _linked_layers as linked
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, exchange_constant
from onnxqat.passes._inference import Inferred
from onnxqat.types import FloatArray

DEVIATIONS = 3.0
"""Deviations below the mean of a channel that all its values but one in a thousand stay above, as in the paper."""

TINY = 1e-6
"""Share of the parameters' sizes below which nothing is absorbed: what rounding leaves after a first run."""

ABSORBED = "onnxqat.absorbed"  # on a layer whose channels were lowered by ranges of the data

SHIFTED = frozenset({"Relu", "LeakyRelu", "PRelu", "Identity", "MaxPool", "GlobalMaxPool", *linked.FLATTENING})
"""Functions with ``f(x - c) = f(x) - c`` for every x >= c >= 0."""

PADDED = "a high bias was not absorbed: the layer behind pads with zeros, where there is nothing to make up for"


class HighBiasAbsorption(Pass):
    """The bias of a layer is lowered by what its channels always exceed, and the layers behind get it back as a bias.

    Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", ICCV 2019, section 4.1.3: after
    cross-layer equalization some biases are high, and so are their channels, which all others share a scale with. With
    ``relu(x - c) = relu(x) - c`` for x >= c >= 0, the part c moves into ``b2 + W2 c``. Of a BatchNormalization that is not
    folded yet, c is ``max(0, beta - 3 gamma)``.

    1. Without `amounts`: each BatchNormalization with constant parameters, as the paper has it, with no data.
    2. With `amounts`: Conv, ConvTranspose, Gemm, and MatMul with an Add behind; the layer is noted.
    3. The layers behind are Conv and Gemm, and MatMul with an Add; between are Relu, LeakyRelu, PRelu, Identity, max
       pools and what flattens.
    4. Left alone: a layer behind that pads with zeros, which is said; Clip with an upper bound, average pools, and what
       cross-layer equalization leaves alone too.

    Tolerance: float rounding, for values above c; a value below c by d gives up to d more than before, as Relu cuts it. ::

        x = Conv(v, w1, b1)  y = Relu(x)  z = Conv(y, w2, b2)
        x = Conv(v, w1, b1 - c)  y = Relu(x)  z = Conv(y, w2, b2 + sum(w2) c)

    Args:
        amounts: name of the tensor that the layers behind read to c of each channel, at least 0, shape (C,).
    """

    def __init__(self, amounts: Mapping[str, FloatArray] | None = None) -> None:
        self._amounts = amounts

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Absorb; see the class."""
        log = Log()
        inferred = Inferred(model)
        for scope in walk.scopes(model):
            found = _of_batchnorms(scope, inferred) if self._amounts is None else self._of_layers(scope, inferred)
            for link, amounts, lower in found:
                reason = _refusal(link)
                if reason is not None:
                    log.left(reason, *link.readers)
                elif amounts.any() and all(layers.has_place_for_bias(reader) for reader in link.readers):
                    lower(amounts, context)
                    for reader in link.readers:
                        _give(link, reader, amounts, context)
                    log.did("a bias was lowered and absorbed by the layers behind", link.source)
        return log.result()

    def _of_layers(self, scope: walk.Scope, inferred: Inferred) -> Iterator[_Found]:
        for link in links(scope, inferred):
            amounts = (self._amounts or {}).get(link.name)
            if amounts is not None and ABSORBED not in link.source.metadata_props:
                yield link, np.asarray(amounts, np.float64), _lower_bias(link)


_Lower = Callable[[layers.Array, Context], None]
_Found = tuple[linked.Link, layers.Array, _Lower]


def links(scope: walk.Scope, inferred: Inferred | None = None) -> Iterator[linked.Link]:
    """Links of `scope` that a shift passes, and whose source has a place for a bias."""
    for link in linked.find(scope, inferred=inferred):
        if isinstance(link, linked.Link) and _is_shifted(link) and layers.has_place_for_bias(link.source):
            yield link


def _is_shifted(link: linked.Link) -> bool:
    return all(node.op_type in SHIFTED for node in link.through)


def _refusal(link: linked.Link) -> str | None:
    return PADDED if any(_pads(reader) for reader in link.readers) else None


def _pads(reader: ir.Node) -> bool:
    """Check whether some outputs of a layer see fewer than all places of its kernel."""
    if reader.op_type not in CONVOLUTIONS:
        return False
    return reader.op_type == "ConvTranspose" or windows.is_padded(reader)


def _lower_bias(link: linked.Link) -> _Lower:
    def lower(amounts: layers.Array, context: Context) -> None:
        row = layers.bias_row(link.source)
        assert row is not None
        layers.set_bias(link.scope, link.source, row - amounts, context.names)
        link.source.metadata_props[ABSORBED] = HighBiasAbsorption.name

    return lower


def _of_batchnorms(scope: walk.Scope, inferred: Inferred) -> Iterator[_Found]:
    for node in list(scope):
        parameters = [query.constant_array(v) for v in node.inputs[1:3]] if is_batchnorm(node) else []
        if len(parameters) != 2 or parameters[0] is None or parameters[1] is None:
            continue
        gamma, beta = (each.astype(np.float64) for each in parameters if each is not None)
        link = linked.follow(scope, node, node.outputs[0], 1, len(beta), inferred=inferred)
        if not isinstance(link, linked.Link) or not _is_shifted(link):
            continue
        amounts = np.maximum(beta - DEVIATIONS * np.abs(gamma), 0)
        amounts[amounts < TINY * (np.abs(beta) + np.abs(gamma))] = 0
        yield link, amounts, _lower_beta(link, node, beta)


def _lower_beta(link: linked.Link, node: ir.Node, beta: layers.Array) -> _Lower:
    def lower(amounts: layers.Array, context: Context) -> None:
        exchange_constant(link.scope, node, 2, beta - amounts, context.names, "lowered")

    return lower


def _give(link: linked.Link, reader: ir.Node, amounts: layers.Array, context: Context) -> None:
    """Add what the channels lost to the bias of `reader`."""
    weight = layers.unfolded(reader)
    groups, _, inputs, _ = weight.shape
    lost = np.repeat(amounts, link.repeat).reshape(groups, 1, inputs, 1)
    row = layers.bias_row(reader)
    assert row is not None
    layers.set_bias(link.scope, reader, row + (weight * lost).sum(axis=(2, 3)).reshape(-1), context.names)
