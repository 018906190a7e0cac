"""The tensor of a model that NaN or infinity comes from, found by running it over one batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnxqat.data.inputs import Feeds
from onnxqat.graph import query, walk
from onnxqat.graph.blame import Blame, has_minus_infinity, hides, is_broken
from onnxqat.runtime.session import Session, main_values

AT_ONCE = 32  # tensors that one session returns: all tensors of a large model at once would not fit into memory


def find_origin(model: ir.Model, feeds: Feeds, *, custom_ops: Sequence[str] = ()) -> str | None:
    """Return the name of the first tensor with NaN or infinity, as the graph is written (optimizations off).

    Masks of -inf are blamed only where nothing else is (:class:`onnxqat.graph.blame.Blame`). Looked at are the inputs
    and what nodes of the main graph compute; constants are not.

    Args:
        model: float or quantized model; it is not changed.
        feeds: one array per input.
        custom_ops: shared libraries with custom operators, for onnxruntime to load.

    Returns:
        None where all tensors are finite.

    Raises:
        ModelError: ``model-not-runnable``.
    """
    blame, masks = Blame(), set[str]()
    for name, value in feeds.items():
        blame.look(name, broken=is_broken(value), minus_infinity=has_minus_infinity(value), masked=True)
        masks.update([name] if hides(value) else [])
    for name, constant in model.graph.initializers.items():
        array = query.constant_array(constant)
        masks.update([name] if array is not None and hides(array) else [])
    # Of a type that the file does not state, the runtime tells.
    values = main_values(model.graph)
    names = [name for name, value in values.items() if value.dtype is None or query.is_float(value)]
    for start in range(0, len(names), AT_ONCE):
        if blame.settled:
            break
        some = names[start : start + AT_ONCE]
        found = Session(model, optimize=False, tensors=some, custom_ops=custom_ops).run(feeds, some)
        for name in [name for name in some if name in found]:
            value = found[name]
            masked = _is_given(values[name]) or any(source in masks for source in _sources(values[name].producer()))
            blame.look(name, broken=is_broken(value), minus_infinity=has_minus_infinity(value), masked=masked)
            masks.update([name] if hides(value) else [])
    return blame.name


def _is_given(value: ir.Value) -> bool:
    """Return True for what the file states: a constant, or the fill value of a ConstantOfShape."""
    node = value.producer()
    return query.constant_tensor(value) is not None or (node is not None and node.op_type == "ConstantOfShape")


def _sources(node: ir.Node | None) -> Iterator[str]:
    """Names of the tensors that `node` reads, in its subgraphs too."""
    if node is None:
        return
    yield from (str(v.name) for v in node.inputs if v is not None)
    for graph in walk.subgraphs(node):
        for inner in graph:
            yield from _sources(inner)
