"""A session that tells if any tensor of the main graph holds NaN or infinities, without fetching the tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.data.inputs import Feeds
from onnxqat.graph import build
from onnxqat.runtime.session import Session, main_values

Array = npt.NDArray[Any]

SUMMED = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


class WatchedSession:
    """A model in onnxruntime, optimizations off, with the sum of each float tensor beside its outputs.

    A sum with NaN or an infinity in it is not finite. The reverse does not hold: finite values may add up to more than
    the type holds, and a mask of -inf is legitimate. So a sum that is not finite is a reason to look, as
    :func:`onnxqat.runtime.non_finite.origin` does, which fetches every tensor: on a network for spectrograms that took
    three runs where this takes one.

    Args:
        model: it is not changed.
        what: what messages call the model.

    Attributes:
        finite: whether all sums and outputs of all runs so far were finite; False where the model has no operators of ONNX.

    Raises:
        ModelError: as of :class:`onnxqat.runtime.session.Session`.
    """

    def __init__(self, model: ir.Model, what: str) -> None:
        watched = model.clone()
        self.finite = "" in model.opset_imports
        self._outputs = [str(v.name) for v in model.graph.outputs]
        self._fetched = _watched(watched) if self.finite else []
        self._session = Session(watched, optimize=False, what=what)

    def run(self, feeds: Feeds) -> dict[str, Array]:
        """The graph's outputs by name.

        Raises:
            ModelError: as of :meth:`onnxqat.runtime.session.Session.run`.
        """
        found = self._session.run(feeds, [*self._outputs, *self._fetched])
        self.finite = self.finite and all(bool(np.isfinite(v).all()) for v in found.values() if v.dtype.kind == "f")
        return {name: found[name] for name in self._outputs if name in found}


def _watched(model: ir.Model) -> list[str]:
    """Add a ReduceSum over all of each float tensor of the main graph; tensors without a known type are fetched whole.

    The sums follow all other nodes, the first tensor's last: onnxruntime begins at the last node that nothing reads, and
    so adds up a tensor once it is there instead of holding all of them.

    Returns:
        Names of the sums and of those tensors, which are outputs of `model` now.
    """
    names, found = build.Names(model), list[ir.Value]()
    nodes: list[ir.Node] = []
    for value in main_values(model.graph).values():
        if value.type is None and not value.is_graph_output():
            value.shape = None  # a stale one does no harm before it is that of an output
            found.append(value)
        if not isinstance(value.type, ir.TensorType) or value.dtype not in (ir.DataType.FLOAT16, *SUMMED):
            continue
        made, source = list[ir.Node](), value
        if value.dtype == ir.DataType.FLOAT16:  # whose largest value the sum of an ordinary tensor passes
            name = names.fresh(f"{value.name}_float")
            to = ir.DataType.FLOAT
            made.append(build.node("Cast", [value], [name], {"to": int(to)}, dtype=to, shape=value.shape))
            source = made[0].outputs[0]
        name = names.fresh(f"{value.name}_sum")
        made.append(build.node("ReduceSum", [source], [name], {"keepdims": 0}, dtype=source.dtype, shape=ir.Shape(())))
        nodes[:0] = made
        found.append(made[-1].outputs[0])
    model.graph.extend(nodes)
    model.graph.outputs.extend(found)
    return [str(value.name) for value in found]
