"""The arithmetic that a run computes with where the user names none: that of the kernels of the file's backend."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat import discover
from onnxqat.backends import schema
from onnxqat.errors import QatError
from onnxqat.training.execution.execution import Precision

FLOAT = "float"


def resolve(
    asked: str | None, graph: ir.Model, *, precision: Precision, compiled: bool, distributed: str, inner: bool
) -> str:
    """The name of the arithmetic: `asked`, else the one that the backend table states, else ``float``.

    Dequantized floats remain where integers would cost more than they give: half precision does not hold all codes, a
    graph that is traced has no bounds on its sums and would add all of them in float64, a model in shards has its
    quantizers elsewhere, and what lies between an operator and its quantizer is nowhere to be compared with a teacher's.

    Args:
        asked: by the user; None: nothing.
        graph: QDQ model; what it records as its backend counts.
        precision: of the layers.
        compiled: whether the module goes through ``torch.compile``.
        distributed: the strategy of several processes.
        inner: whether inner tensors are compared with a teacher's.
    """
    if asked is not None:
        return asked
    known = of_backend(graph)
    if known is None or precision != "float32" or compiled or inner:
        return FLOAT
    strategy = discover.load("onnxqat.training.distributed.strategies", distributed).Strategy
    return FLOAT if strategy.in_shards else known


def of_backend(graph: ir.Model) -> str | None:
    """Return the arithmetic of the backend that `graph` records; None where its table has none or is not found."""
    name = graph.metadata_props.get("onnxqat.backend")
    if not name:
        return None
    try:
        return schema.load(name).arithmetic
    except QatError:  # a table of the user's that is elsewhere now
        return None
