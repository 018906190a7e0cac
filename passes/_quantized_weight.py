"""The quantizer of a weight gets other values: where only one layer reads it in place, else beside it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, qdq, query, walk
from onnxqat.graph.quantizer import Quantizer
from onnxqat.passes._edits import drop_unused, remove_with_constants
from onnxqat.passes._forms import float_name
from onnxqat.types import QParams


def exchange(
    scope: walk.Scope,
    layer: ir.Node,
    weight: Quantizer,
    qparams: QParams,
    codes: np.ndarray,
    values: np.ndarray,
    names: build.Names,
    *,
    stamp: dict[str, str],
) -> None:
    """Let input 1 of `layer`, which `weight` makes, hold `codes` or the float `values`, on the grid of `qparams`.

    Names stay where nothing else reads the quantizer; otherwise the layer gets one of its own, ``<weight>_folded``.
    The grid and the zero points are those of before.
    """
    held = codes if weight.stored else values
    if _is_private(layer, weight):
        overwrite(weight.input, held, names)
        for scale in weight.scales:
            overwrite(scale, qparams.scale, names)
        for node in weight.nodes:
            node.metadata_props.pop(qdq.SCALE_BITS, None)
        return
    base = names.fresh(f"{float_name(weight) if weight.stored else weight.input.name}_folded")
    parameters = qdq.make_parameters(scope, names, base, qparams)
    if weight.stored:
        source = ir.Value(name=base)
        made = qdq.insert_stored(source, codes, parameters, qparams, names, stamp, scope=scope, before=layer)
        dequantize = made.producer()
        if qparams.qtype.needs_clip and dequantize is not None:
            dequantize.metadata_props[qdq.QUANT_MIN] = str(qparams.qtype.quant_min)
            dequantize.metadata_props[qdq.QUANT_MAX] = str(qparams.qtype.quant_max)
    else:
        source = build.constant(scope, base, values, before=layer)
        made = qdq.insert_pair(source, parameters, qparams, names, stamp, scope=scope, before=layer)
    layer.replace_input_with(1, made)
    drop(weight)


def drop(quantizer: Quantizer) -> None:
    """Remove the nodes of a quantizer that nothing reads any more, and their constants."""
    for node in reversed(quantizer.nodes):
        if not any(map(query.is_used, node.outputs)):
            remove_with_constants(node)


def _is_private(layer: ir.Node, weight: Quantizer) -> bool:
    readers = weight.uses
    if readers != [(layer, 1)] or any(value.is_graph_output() for value in weight.outputs):
        return False
    constants = (weight.input, *weight.scales)
    users = [node for value in constants for node, _ in value.uses()]
    return not any(value.is_graph_output() for value in constants) and all(node in weight.nodes for node in users)


def overwrite(value: ir.Value, array: np.ndarray, names: build.Names) -> None:
    """Let a constant hold `array`, in the type that it has, under its name."""
    found, producer = query.constant_tensor(value), value.producer()
    assert found is not None
    if producer is None:
        value.const_value = build.tensor(array, found.dtype, value.name)
        return
    name = value.name
    made = build.constant(walk.scope_of(producer), names.fresh(f"{name}_folded"), array, found.dtype, before=producer)
    value.replace_all_uses_with(made)
    drop_unused(value)
    made.name = name
