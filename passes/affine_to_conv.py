"""A scale and an offset per channel of a map, with no layer in front, as a depthwise convolution of one place."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat.analysis import grouped_nodes
from onnxqat.backends.schema import Backend
from onnxqat.graph import build, query, walk
from onnxqat.graph.batchnorm import is_batchnorm, is_kept
from onnxqat.passes import _constant_arithmetic
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._batchnorm import Affine, affine
from onnxqat.passes._edits import Log, absorb, drop_unused, is_private
from onnxqat.passes._inference import Inferred
from onnxqat.passes._selective import SelectivePass
from onnxqat.passes._setting import Setting


class AffineToConv(SelectivePass):
    """A BatchNormalization, or Mul and Add with constants per channel, becomes a depthwise Conv of one place.

    It is one integer kernel with an int32 bias, exact factors where weights have a scale per channel, and a Relu behind it
    goes along; Mul and Add would round in between, and their constants to one scale each. Run it behind fold-batchnorm
    and fold-affine, which need no kernel at all, and in front of batchnorm-to-affine. Networks whose normalizations lie
    in front of the layers (DenseNet, pre-activation ResNet) and normalized input images are the use.

    1. Chains of BatchNormalization, Mul, Div, Add and Sub whose results nothing else reads: at least one factor per channel
       in each. Factors and offsets are multiplied out in float64.
    2. The Conv and its output keep the names of the last node and its output.
    3. Left alone: tensors of another rank than 4 (3 too behind a BatchNormalization) or with an unknown number of channels;
       what is part of a normalization or of another group; a BatchNormalization that placement kept; nodes of
       which `selection` says that they stay in float.

    Tolerance: float rounding, 1e-5 of the output's range. ::

        y = BatchNormalization(x, gamma, beta, mean, variance)
        y = Conv <group = C> (x, y_factor, y_offset)              # y_factor: C, 1, 1, 1
    """

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run for tables that would quantize Mul, Add and Conv alike, so that one kernel takes the place of two."""
        return cls(setting) if _is_gain(setting.table) else None

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Replace each chain; see the class."""
        log, inferred = Log(), None
        for scope in walk.scopes(model):
            # Shapes are inferred on a copy of the model: only where a chain may need them.
            chains = [chain for chain in _chains(scope) if _scales(chain) and not self._is_left(chain)]
            if not chains or not isinstance(scope, ir.Graph):
                continue
            grouped = grouped_nodes.of(scope)
            for chain in chains:
                if not grouped.isdisjoint(chain):
                    continue
                inferred, label = inferred or Inferred(model), query.label(chain[-1])
                if _replace(scope, chain, inferred, context.names, self.name):
                    log.did("a scale and an offset per channel became a depthwise convolution", label)
        return log.result()

    def _is_left(self, chain: list[ir.Node]) -> bool:
        return any(map(self.stays_float, chain))


def _is_gain(table: Backend) -> bool:
    """Check whether `table` quantizes what Conv, Mul and Add read, with weights that hold a factor per channel."""
    rows = [table.ops.get(op) for op in ("Conv", "Mul", "Add")]
    if table.dynamic_activations or any(row is None or not row.inputs or row.inputs[0].use is None for row in rows):
        return False
    if table.first_last_bits is not None:
        return False  # it would be counted as the first layer
    slot = rows[0].input_slot(1) if rows[0] is not None else None
    weight = table.types.get(slot.use) if slot is not None and slot.use is not None else None
    # Few codes for all channels would make factors alike that are not.
    return weight is not None and (weight.granularity == "channel" or weight.qtype().bits >= 8)


def _chains(scope: walk.Scope) -> list[list[ir.Node]]:
    """Nodes that are affine in the one tensor that they read, each longest chain of them in order."""
    links = {node for node in scope if _data(node) is not None}
    chains = []
    for node in scope:
        if node not in links or _next(node, links) is not None:
            continue
        chain = [node]
        while (before := _data(chain[0])) is not None:
            maker = before.producer()
            if maker is None or maker not in links or _next(maker, links) is not chain[0]:
                break
            chain.insert(0, maker)
        chains.append(chain)
    return chains


def _next(node: ir.Node, links: set[ir.Node]) -> ir.Node | None:
    """The link that alone reads what `node` makes, or None."""
    if not is_private(node.outputs[0]):
        return None
    reader = node.outputs[0].consumers()[0]
    return reader if reader in links and reader.graph is node.graph and _data(reader) is node.outputs[0] else None


def _data(node: ir.Node) -> ir.Value | None:
    """The tensor that a link of a chain scales or moves; None for other nodes."""
    if is_batchnorm(node):
        return None if is_kept(node) else node.inputs[0]
    arithmetic = _constant_arithmetic.of(node)
    return None if arithmetic is None else arithmetic.data


def _scales(chain: list[ir.Node]) -> bool:
    """Check whether a node of `chain` has more factors than one."""
    return any(
        is_batchnorm(node)
        or (
            node.op_type in ("Mul", "Div")
            and (found := _constant_arithmetic.of(node)) is not None
            and found.factor.size > 1
        )
        for node in chain
    )


def _function(chain: list[ir.Node], rank: int, channels: int) -> Affine | None:
    """The product of the functions of `chain`; None where one is none per channel."""
    total = Affine(np.ones(channels), np.zeros(channels))
    for node in chain:
        if is_batchnorm(node):
            found = affine(node)
            if isinstance(found, str):
                return None
            factor, offset = found.factor, found.offset
        else:
            arithmetic = _constant_arithmetic.of(node)
            assert arithmetic is not None
            along = [_constant_arithmetic.along(part, rank, 1) for part in (arithmetic.factor, arithmetic.offset)]
            if along[0] is None or along[1] is None:
                return None
            factor, offset = along[0], along[1]
        if factor.size not in (1, channels):
            return None
        total = Affine(total.factor * factor, total.offset * factor + offset)
    return total


def _replace(scope: ir.Graph, chain: list[ir.Node], inferred: Inferred, names: build.Names, creator: str) -> bool:
    """Write `chain` as a Conv; return whether it could be."""
    source, last = _data(chain[0]), chain[-1]
    shape, dtype = inferred.shape(source), inferred.dtype(source)
    if source is None or shape is None or dtype is not ir.DataType.FLOAT:
        return False
    # With three axes, constants are also scales of boxes and of tokens, which a normalization never is.
    if len(shape) != 4 and not (len(shape) == 3 and any(is_batchnorm(node) for node in chain)):
        return False
    channels = shape[1]
    function = None if channels is None else _function(chain, len(shape), channels)
    if channels is None or function is None:
        return False
    with np.errstate(over="ignore"):
        weight, bias = function.factor.astype(np.float32), function.offset.astype(np.float32)
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        return False
    base, window = str(last.outputs[0].name), [1] * (len(shape) - 2)
    constants = [
        build.constant(scope, names.fresh(f"{base}_{suffix}"), array, dtype, before=last)
        for suffix, array in (("factor", weight.reshape(channels, 1, *window)), ("offset", bias))
    ]
    conv = build.node(
        "Conv",
        [source, *constants],
        [names.fresh(f"{base}_scaled")],
        {"group": channels, "kernel_shape": window},
        dtype=dtype,
        shape=last.outputs[0].shape,
        name=names.fresh(f"{last.name or base}_Conv"),
        stamp={build.CREATED_BY: creator},
    )
    scope.insert_before(last, conv)
    name, read = last.name, [value for node in chain for value in node.inputs]
    absorb(last, conv.outputs[0])
    for node in reversed(chain[:-1]):
        scope.remove(node, safe=True)
    conv.name = name or conv.name
    for value in read:
        drop_unused(value)
    return True
