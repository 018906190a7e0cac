"""One factor and one offset in front of layers folded into their weights and biases."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxqat.analysis import grouped_nodes
from onnxqat.graph import build, data_movement, query, walk, windows
from onnxqat.graph.layers import LAYERS
from onnxqat.ops import operators as ops
from onnxqat.passes import _batchnorm_parts, _constant_arithmetic
from onnxqat.passes._affine_folds import fits, give_bias
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, drop_unused, exchange_constant, is_private
from onnxqat.passes._selective import SelectivePass
from onnxqat.passes._setting import Setting

FAR_FROM_ZERO = frozenset({"Clip", "LogSoftmax"})
"""Activation functions whose results may all be far from zero."""


class FoldInputAffine(SelectivePass):
    """A Mul, Div, Add or Sub with one constant for all values goes into the layers that read its result.

    Pixels that are divided by 255 and the learnable affine block behind an activation (PP-LCNet, HGNet) are the use: a
    kernel and a pair of quantizers less, and weights of another scale lie on the same codes. Run it behind
    fold-affine, which needs no private weight.

    1. A factor: into the weights of Conv, ConvTranspose, Gemm and MatMul. It passes an Add or Sub of one constant on
       its way, which is divided by it and whose result gets a name of its own.
    2. An offset of what an activation function returns: into the biases of Conv without padding, and of Gemm.
    3. Left alone: an offset of other values, which may lie so far from zero that one grid for them has no code left for
       their differences (temperatures in kelvin); results that anything else reads or that are graph outputs; weights that
       other nodes read, or that are not constant; a factor of zero; what is part of a normalization or of another group;
       values that leave the weight's type; constants of more axes than the input is known to have; nodes of which
       `selection` says that they stay in float.

    Tolerance: float rounding, 1e-5 of the output's range. ::

        r = Relu(x)   m = Mul(r, factor)   a = Add(m, offset)   y = Conv(a, w)
        r = Relu(x)   y = Conv(r, w, y_bias)                      # w times factor, a bias of the sum of w times offset
    """

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run for every table, but where encodings name the weights and tensors of the float file."""
        return None if setting.overrides.encodings else cls(setting)

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Fold what can be folded; see the class."""
        log = Log()
        for scope in walk.scopes(model):
            found = [node for node in scope if _function(node) is not None and not self.stays_float(node)]
            grouped = grouped_nodes.of(scope) if found else frozenset()
            for node in reversed(found):  # what is folded brings the node in front of it to the layers
                label = query.label(node)
                if node not in grouped and _fold(scope, node, grouped, context.names):
                    log.did(f"{node.op_type} with one constant folded into the layers behind it", label)
        return log.result()


class _Scalars(NamedTuple):
    """``data * factor + offset``."""

    data: ir.Value
    factor: float
    offset: float


def _function(node: ir.Node) -> _Scalars | None:
    """Factor and offset of a node that changes all values alike and keeps their shape; None for others, and for factor 0."""
    found = _constant_arithmetic.of(node)
    if found is None or found.factor.size != 1:
        return None
    rank = query.rank(found.data)
    if found.factor.ndim > (0 if rank is None else rank):
        return None
    factor, offset = found.factor.item(), found.offset.item()
    return _Scalars(found.data, factor, offset) if np.isfinite([factor, offset]).all() and factor != 0 else None


def _fold(scope: walk.Scope, node: ir.Node, grouped: Set[ir.Node], names: build.Names) -> bool:
    """Fold `node` into the layers behind it; return whether they can take it."""
    function = _function(node)
    if function is None or (function.offset and not _is_around_zero(function.data)):
        return False
    layers = _layers(node, function)
    if not layers:
        return _pass_on(scope, node, function, grouped, names)
    for layer in layers:
        _give(scope, layer, function, names)
    _remove(node, function.data)
    return True


def _is_around_zero(value: ir.Value) -> bool:
    """Check whether `value` is what an activation function returns, scaled or moved, so that a grid for it serves its values."""
    while (node := value.producer()) is not None:
        function, moved = _function(node), data_movement.sources(node)
        if function is not None and function.offset == 0:
            value = function.data
        elif len(moved) == 1:
            value = moved[0]
        else:
            return _is_activation(node) or _gates(node)
    return False


def _is_activation(node: ir.Node) -> bool:
    row = ops.of(node)
    return row is not None and row.family == "activation" and node.op_type not in FAR_FROM_ZERO


def _gates(node: ir.Node) -> bool:
    """Check whether `node` is the product of a tensor and an activation of it, as Swish and HardSwish are written out."""
    if node.domain or node.op_type != "Mul":
        return False
    makers = [query.producer(value) for value in node.inputs]
    return any(
        maker is not None and _is_activation(maker) and maker.inputs[0] is node.inputs[1 - index]
        for index, maker in enumerate(makers)
    )


def _pass_on(scope: walk.Scope, node: ir.Node, function: _Scalars, grouped: Set[ir.Node], names: build.Names) -> bool:
    """Fold the factor that `node` is into the layers behind an Add or Sub, the constant of which is divided by it."""
    if node.op_type not in ("Mul", "Div") or not is_private(node.outputs[0]):
        return False
    after = node.outputs[0].consumers()[0]
    found = _function(after)
    if found is None or found.factor != 1.0 or after in grouped or after.graph is not node.graph:
        return False
    index = 0 if query.constant_array(after.inputs[0]) is not None else 1
    layers, held = _layers(after, function), query.constant_array(after.inputs[index])
    if not layers or held is None:
        return False
    moved = held.astype(np.float64) / function.factor
    if not _holds(after.inputs[index], moved):
        return False
    for layer in layers:
        _give(scope, layer, function, names)
    exchange_constant(scope, after, index, moved, names, "folded")
    _remove(node, function.data)
    output = after.outputs[0]
    output.name = names.fresh(f"{output.name}_divided")  # other values than those that the user knows by the name
    return True


def _layers(node: ir.Node, function: _Scalars) -> list[ir.Node] | None:
    """The layers that read the result of `node`; None where something else does, or one can not take `function`."""
    output = node.outputs[0]
    if output.is_graph_output():
        return None
    uses = list(output.uses())
    takes = all(use.idx == 0 and _takes(use.node, function) and use.node.graph is node.graph for use in uses)
    return [use.node for use in uses] if takes else None


def _takes(layer: ir.Node, function: _Scalars) -> bool:
    if layer.domain or layer.op_type not in LAYERS or query.takes_arguments(layer):
        return False
    weight = layer.inputs[1]
    array = query.constant_array(weight)
    if weight is None or array is None or array.ndim < 2 or not is_private(weight):
        return False
    if layer.op_type == "Gemm" and (query.attribute(layer, "transA", 0) or not _is_plain(layer)):
        return False
    if not _holds(weight, array.astype(np.float64) * function.factor):
        return False
    if function.offset == 0.0:
        return True
    bias, added = _bias(layer), _added(layer, function.offset)
    return bias is not None and added is not None and fits(weight, bias + added)


def _holds(constant: ir.Value | None, array: np.ndarray) -> bool:
    """Check whether the type of `constant` holds `array`, and with all its digits what counts beside the largest values."""
    found = query.constant_array(constant)
    if found is None or not fits(constant, array):
        return False
    kind, sizes = np.finfo(found.dtype), np.abs(array)
    counts = sizes > sizes.max(initial=0.0) * float(kind.eps)
    return bool((sizes[counts] >= float(kind.smallest_normal)).all())


def _is_plain(gemm: ir.Node) -> bool:
    return all(float(query.attribute(gemm, name, 1.0)) == 1.0 for name in ("alpha", "beta"))


def _bias(layer: ir.Node) -> np.ndarray | None:
    """Bias of `layer`, zero where it has none; None where it is not constant."""
    held = query.input_at(layer, 2)
    return np.zeros(()) if held is None else query.constant_array(held)


def _added(layer: ir.Node, offset: float) -> np.ndarray | None:
    """Bias that `offset` at every input of `layer` amounts to, by output channel; None where places differ."""
    weight = query.constant_array(layer.inputs[1])
    assert weight is not None
    wide = weight.astype(np.float64)
    if layer.op_type == "Conv" and not windows.is_padded(layer):
        return np.asarray(offset * wide.reshape(len(wide), -1).sum(1))
    if layer.op_type == "Gemm":
        return np.asarray(offset * wide.sum(1 if query.attribute(layer, "transB", 0) else 0))
    return None


def _give(scope: walk.Scope, layer: ir.Node, function: _Scalars, names: build.Names) -> None:
    """Let `layer` compute of `x` what it computed of ``x * factor + offset``."""
    weight = query.constant_array(layer.inputs[1])
    assert weight is not None
    added = _added(layer, function.offset) if function.offset else None
    if function.factor != 1.0:
        exchange_constant(scope, layer, 1, weight.astype(np.float64) * function.factor, names, "folded")
        _batchnorm_parts.in_front(layer, lambda noted: noted * function.factor)
    if added is not None and (bias := _bias(layer)) is not None:
        give_bias(scope, layer, bias + added, names)
        _batchnorm_parts.behind(layer, 1.0, added)


def _remove(node: ir.Node, data: ir.Value) -> None:
    """Take `node` out; its readers read `data`, its input that is no constant."""
    constants = [value for value in node.inputs if value is not data]
    node.outputs[0].replace_all_uses_with(data)
    walk.scope_of(node).remove(node, safe=True)
    for value in constants:
        drop_unused(value)
