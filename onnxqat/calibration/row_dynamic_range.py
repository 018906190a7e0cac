"""Linear layers in front of a normalization, whose rows differ so much in size that one scale destroys the small ones.

A normalization divides every row by its own size. A small row, of which 8 bits keep two codes, becomes as large as any other,
and so does its error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.analysis import dataflow, normalizations
from onnxqat.analysis.residual_streams import NORMALIZATIONS
from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.graph import query

LINEAR = ("MatMul", "Gemm", "Add")
SPARE_BITS = 3  # a row needs that many to be told from noise
SMALL_SHARE = 0.05  # of the rows; fewer are padding or outliers


class RowSizes:
    """Histogram of the binary exponent of the largest magnitude per row (last axis) of a tensor; zero rows left out."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    def update(self, values: npt.NDArray[np.generic]) -> None:
        """Add the rows of one batch."""
        if values.ndim == 0 or values.size == 0:
            return
        sizes = np.abs(values.astype(np.float64)).reshape(-1, values.shape[-1]).max(axis=1)
        exponents, counts = np.unique(np.frexp(sizes[sizes > 0])[1], return_counts=True)
        self.counts.update(dict(zip(exponents.tolist(), counts.tolist(), strict=True)))

    def small_share(self, bits: int) -> float:
        """Share of the rows that are too small for a grid of `bits` bits, 8 or more, which covers the largest."""
        if not self.counts:
            return 0.0
        limit = max(self.counts) - (max(bits, 8) - SPARE_BITS)
        return sum(n for exponent, n in self.counts.items() if exponent < limit) / self.counts.total()


def normalized_layers(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Value]]:
    """Linear layers and sums that only lead to a normalization, an operator or written out, with the tensors they read."""
    inside = normalizations.parts(model.graph)
    for graph in dataflow.reached_graphs(model.graph):
        for node in graph:
            if node.op_type not in LINEAR or node.domain or node in inside or not _is_normalized(node, inside):
                continue
            for value in node.inputs[:2]:
                if value is not None and query.constant_tensor(value) is None:
                    yield node, value


def row_sizes(model: ir.Model, tensors: Collection[str]) -> dict[str, RowSizes]:
    """Return an empty histogram for each of `tensors` that such a layer reads."""
    return {str(v.name): RowSizes() for _, v in normalized_layers(model) if v.name in tensors}


def _is_normalized(node: ir.Node, inside: frozenset[ir.Node]) -> bool:
    """Check whether only normalizations read the output of `node`, directly or behind a bias."""
    output = node.outputs[0]
    users = output.consumers()
    if not users or output.is_graph_output():
        return False
    biased = len(users) == 1 and users[0].op_type == "Add" and users[0] not in inside
    if biased and any(query.constant_tensor(v) is not None for v in users[0].inputs):
        return _is_normalized(users[0], inside)
    return all(user in inside or user.op_type in NORMALIZATIONS for user in users)


def unfit_layers(model: ir.Model, sizes: Mapping[str, RowSizes], observers: Mapping[str, BaseObserver]) -> list[str]:
    """Names of those layers whose rows, as observed, do not fit one scale."""
    found = (
        str(node.name)
        for node, value in normalized_layers(model)
        if str(value.name) in sizes
        and str(value.name) in observers
        and sizes[str(value.name)].small_share(observers[str(value.name)].spec.qtype.bits) > SMALL_SHARE
    )
    return list(dict.fromkeys(found))
