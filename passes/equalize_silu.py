"""Channels of very different size in front of a SiLU brought to one size, so that one activation scale suits all."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, query, walk
from onnxqat.passes import _layer_channels as layers
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log
from onnxqat.placement.fusion_chains import SATURATED, silu_behind
from onnxqat.types import FloatArray

SPREAD = 8.0
"""Largest channel over the geometric mean of all, from where on a tensor is equalized: of 256 codes, the typical
channel then gets fewer than 32."""

LOWEST = 0.2785
"""A SiLU is never less than minus this."""

LEVELS = 127
"""Factors are 1 to 127 times a power of two, so that quantizing them to 8 bits changes none by more than 0.4 %, and
power-of-two scales none at all."""


class EqualizeSilu(Pass):
    """Between convolutions, the channels of a SiLU whose sizes differ widely get one size.

    ``x * sigmoid(x)`` commutes with no factor, so cross-layer equalization (Nagel et al., "Data-Free Quantization
    Through Weight Equalization and Bias Correction", ICCV 2019) stops there. With the factor put back in front of the
    Sigmoid alone it does: with ``u = x / s``, ``x * sigmoid(x) = s * (u * sigmoid(s * u))``. The division goes into
    the weights and bias of the convolution in front (scales per output channel follow it), the product into those
    behind (depthwise scales follow it, others gain, since large weights for small channels become small ones).
    What the Sigmoid reads saturates where it does, so its range is short. It costs one product of a tensor and C
    constants, hence the threshold :data:`SPREAD`.

    Where a compiler fuses convolution, SiLU and a product by constants, and so needs no pair inside, the division
    stands behind the SiLU instead, and the convolution in front stays as it is.

    1. A Conv of constant weight and bias whose result only a Sigmoid and a Mul read, and whose product only Conv
       nodes of constant weight read as their input.
    2. The size of a channel is its largest value, or what of its negative side a SiLU still tells apart.
    3. Left alone: tensors without ranges, of alike channels, and everything else, without a remark.

    Tolerance: float rounding. ::

        x = Conv(v, w, b)  g = Sigmoid(x)  y = Mul(x, g)  z = Conv(y, k)
        x = Conv(v, w / s, b / s)  x_restored = Mul(x, s)  g = Sigmoid(x_restored)  y = Mul(x, g)  z = Conv(y, k * s)
        x = Conv(v, w, b)  g = Sigmoid(x)  y = Mul(x, g)  y_equalized = Mul(y, 1 / s)  z = Conv(y_equalized, k * s)

    Args:
        ranges: tensor name of the Conv's result to lowest and highest value of each channel, shape (C,) each.
        behind: the second form, for compilers that fuse it.
        powers: powers of two alone, which no product has to round.
    """

    def __init__(
        self, ranges: Mapping[str, tuple[FloatArray, FloatArray]], *, behind: bool = False, powers: bool = False
    ) -> None:
        self._ranges = dict(ranges)
        self._behind, self._powers = behind, powers

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Equalize; see the class."""
        log = Log()
        for scope in walk.scopes(model):
            for node in sites(scope):
                found = self._ranges.get(str(node.outputs[0].name))
                if found is None:
                    continue
                factors = factors_of(*found, behind=self._behind, powers=self._powers)
                if factors is not None:
                    (_equalize_behind if self._behind else _equalize)(scope, node, factors, context.names)
                    log.did("channels of very different size were equalized through the SiLU behind it", node)
        return log.result()


def sites(scope: walk.Scope, left_out: Collection[ir.Node] = ()) -> list[ir.Node]:
    """Conv nodes of `scope` that the pass can work on, in order; `left_out` nodes keep their results as they are."""
    return [node for node in scope if node not in left_out and _is_site(node)]


def _is_site(node: ir.Node) -> bool:
    if not _is_convolution(node):
        return False
    if query.input_at(node, 2) is not None and query.constant_tensor(node.inputs[2]) is None:
        return False
    silu = silu_behind(node.outputs[0])
    if silu is None or node.outputs[0] not in silu[1].inputs:
        return False
    product = silu[1].outputs[0]
    uses = list(product.uses())
    return (
        bool(uses)
        and not product.is_graph_output()
        and all(user.graph is node.graph and index == 0 and _is_convolution(user) for user, index in uses)
    )


def _is_convolution(node: ir.Node) -> bool:
    return node.op_type == "Conv" and not node.domain and query.constant_tensor(node.inputs[1]) is not None


def factors_of(low: FloatArray, high: FloatArray, *, behind: bool = False, powers: bool = False) -> FloatArray | None:
    """The factor of each channel, float32 (C,), or None where the channels are alike enough.

    Args:
        low: smallest value of each channel in front of the SiLU, shape (C,).
        high: largest value.
        behind: the factors are for what comes behind the SiLU.
        powers: they are to be powers of two.
    """
    # A SiLU of less than -8 is nothing, but such values widen the range that is to be divided by the factor.
    in_front = np.maximum(np.minimum(-low, SATURATED["Sigmoid"]), -low / 2)
    negative = np.minimum(-low, LOWEST) if behind else in_front
    size = np.maximum(high, negative).astype(np.float64)
    largest = size.max(initial=0.0)
    if not largest > 0:
        return None
    size = np.maximum(size, largest / LEVELS)
    if largest < SPREAD * np.exp(np.log(size).mean()):
        return None
    levels = np.ceil(size / largest * LEVELS - 1e-9)
    if powers:
        levels = 2.0 ** np.ceil(np.log2(levels))
    exponent = -np.rint(np.log2(levels).mean())
    return np.asarray(levels * 2.0**exponent, np.float32)


def _equalize(scope: walk.Scope, node: ir.Node, factors: FloatArray, names: build.Names) -> None:
    inner = node.outputs[0]
    silu = silu_behind(inner)
    assert silu is not None
    sigmoid, product = silu
    layers.scale_outputs(scope, node, 1.0 / factors.astype(np.float64), names)
    _scale_readers(scope, product.outputs[0], factors, names)
    restored = _product(scope, node, inner, factors, ("restored", "restore"), names, before=sigmoid)
    scope.insert_before(sigmoid, restored)
    sigmoid.replace_input_with(0, restored.outputs[0])


def _equalize_behind(scope: walk.Scope, node: ir.Node, factors: FloatArray, names: build.Names) -> None:
    silu = silu_behind(node.outputs[0])
    assert silu is not None
    result = silu[1].outputs[0]
    _scale_readers(scope, result, factors, names)
    readers = list(result.uses())
    reciprocal = np.asarray(np.float32(1.0) / factors, np.float32)
    equalized = _product(scope, node, result, reciprocal, ("equalized", "equalize"), names, before=silu[1])
    scope.insert_after(silu[1], equalized)
    for user, index in readers:
        user.replace_input_with(index, equalized.outputs[0])


def _scale_readers(scope: walk.Scope, value: ir.Value, factors: FloatArray, names: build.Names) -> None:
    """Multiply the weights of the Conv nodes that read `value`."""
    for user in list(value.consumers()):
        layers.scale_inputs(scope, user, factors, names)


def _product(
    scope: walk.Scope,
    node: ir.Node,
    value: ir.Value,
    factors: FloatArray,
    called: tuple[str, str],
    names: build.Names,
    *,
    before: ir.Node,
) -> ir.Node:
    """``Mul(value, factors)`` along the channels, in the type of the weight of `node`; it has no place yet."""
    weight = query.constant_tensor(node.inputs[1])
    assert weight is not None
    along = factors.reshape([-1 if d == 1 else 1 for d in range(len(weight.shape))])
    return build.node(
        "Mul",
        [value, build.constant(scope, names.fresh(f"{value.name}_factors"), along, weight.dtype, before=before)],
        [names.fresh(f"{value.name}_{called[0]}")],
        dtype=value.dtype,
        shape=value.shape,
        name=names.fresh(f"{node.name or node.op_type}_{called[1]}"),
        stamp={build.CREATED_BY: "equalize-silu"},
    )


def channels(scope: walk.Scope, left_out: Collection[ir.Node] = ()) -> Iterator[str]:
    """Names of the tensors whose channels have to be observed for :class:`EqualizeSilu`."""
    for node in sites(scope, left_out):
        yield str(node.outputs[0].name)
