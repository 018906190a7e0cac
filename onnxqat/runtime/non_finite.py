"""Origin of NaN and infinities: the first tensor that is not finite where the float model's is.

A quantizer hides them, since it saturates NaN to a code. A mask of -inf is legitimate: the float model has it too, if
perhaps at another place, where the indices that choose among masked values (ArgMax, TopK) come out otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.data.inputs import Feeds, samples_of
from onnxqat.graph import query
from onnxqat.runtime.session import Session, main_values
from onnxqat.runtime.watched_session import WatchedSession

Array = npt.NDArray[Any]
PIECE_BYTES = 2**28
"""Tensors that are fetched in one run: of a batch of large images, all of them would not fit into memory."""


@dataclasses.dataclass(frozen=True)
class Origin:
    """Origin of values that are not finite.

    Attributes:
        tensor: the first such tensor in graph order.
        node: the node that makes it.
        op_type: its operator.
        kind: ``NaN`` or ``infinite``.
        count: such values.
    """

    tensor: str
    node: str
    op_type: str
    kind: str
    count: int

    def __str__(self) -> str:
        return f"tensor {self.tensor!r} of node {self.node!r} ({self.op_type}) has {self.count} {self.kind} values"


def origin(quantized: ir.Model, original: ir.Model, batches: Sequence[Feeds]) -> Origin | None:
    """The first tensor of `quantized` with a value that is not finite where that of `original` is.

    A tensor that `original` does not have counts where it holds NaN.

    Args:
        quantized: the QDQ model.
        original: the float model that it was made from.
        batches: looked at one after the other, up to the first with such a tensor.

    Raises:
        ModelError: ``model-not-runnable``.
    """
    watched = WatchedSession(quantized, "the quantized model")
    for feeds in batches:
        watched.run(feeds)
    if watched.finite:
        return None
    values = {n: v for n, v in main_values(quantized.graph).items() if _is_float(v)}
    shared = {n for n in main_values(original.graph) if n in values}
    first = Session(quantized, optimize=False, tensors=values, what="the quantized model")
    other = Session(original, optimize=False, tensors=shared, what="the float model")
    return next(
        filter(None, (_in_batch(first, other, values, shared, original.graph, feeds) for feeds in batches)), None
    )


def _in_batch(
    first: Session, other: Session, values: Mapping[str, ir.Value], shared: set[str], original: ir.Graph, feeds: Feeds
) -> Origin | None:
    masks: set[str] = set()
    for names in _pieces(values, samples_of(feeds)):
        found = first.run(feeds, names)
        reference = other.run(feeds, [n for n in names if n in shared])
        for name in names:
            masks |= {name} if np.isinf(reference.get(name, ())).any() else set()
            origin = _of(values[name], found.get(name), reference.get(name))
            if origin is not None and (origin.kind == "NaN" or not _carries(values[name], masks, original)):
                return origin
            masks |= set() if origin is None else {name}
    return None


def _carries(value: ir.Value, masks: set[str], original: ir.Graph) -> bool:
    """Check whether `value` gets its infinities from a tensor of `masks` or from a constant that `original` has too."""
    node = value.producer()
    names = {v.name for v in (() if node is None else node.inputs) if v is not None}
    constants = (query.constant_array(v) for name, v in original.initializers.items() if name in names)
    return bool(names & masks) or any(c is not None and c.dtype.kind == "f" and np.isinf(c).any() for c in constants)


def _is_float(value: ir.Value) -> bool:
    return value.dtype is None or value.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)


def _pieces(values: Mapping[str, ir.Value], samples: int) -> list[list[str]]:
    """Names in graph order, in pieces whose tensors have :data:`PIECE_BYTES` as far as shapes are known."""
    found: list[list[str]] = [[]]
    held = 0
    for name, value in values.items():
        dims = [] if value.shape is None else [d if isinstance(d, int) else samples for d in value.shape]
        size = 4 * int(np.prod(dims, dtype=np.float64))
        if found[-1] and held + size > PIECE_BYTES:
            found.append([])
            held = 0
        found[-1].append(name)
        held += size
    return found


def _of(value: ir.Value, found: Array | None, reference: Array | None) -> Origin | None:
    if found is None or found.dtype.kind != "f":
        return None
    bad = np.isnan(found) if reference is None else ~np.isfinite(found)
    if reference is not None and reference.shape == found.shape:
        bad &= np.isfinite(reference)
    if not bad.any():
        return None
    node = value.producer()
    kind = "NaN" if np.isnan(found[bad]).any() else "infinite"
    label, op_type = ("", "") if node is None else (query.label(node), node.op_type)
    return Origin(str(value.name), label, op_type, kind, int(bad.sum()))


def few(feeds: Mapping[str, Array], count: int, *, dynamic: bool) -> dict[str, Array]:
    """The first `count` samples of a batch; all of it where the model prescribes the batch size."""
    sizes = {a.shape[0] if a.ndim else 0 for a in feeds.values()}
    cut = dynamic and len(sizes) == 1
    return {name: array[:count] if cut else array for name, array in feeds.items()}
