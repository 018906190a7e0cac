"""The codes that the kernels of onnxruntime's default session give, tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.graph.quantizer import Quantizer
from onnxqat.runtime.isolated_session import Settings
from onnxqat.runtime.optimized_graph import optimized
from onnxqat.runtime.session import Session, main_values
from onnxqat.types import QParams

Array = npt.NDArray[Any]


class KernelCodes:
    """A session that runs the default session's kernels and returns their results.

    Args:
        model: the QDQ model; a default session has opened it.
        quantizers: those whose codes are wanted.
        settings: of the default session.

    Attributes:
        tensors: of `quantizers`, the dequantized tensors whose codes the session holds.

    Raises:
        Exception: whatever onnxruntime raises.
    """

    def __init__(self, model: ir.Model, quantizers: Sequence[Quantizer], settings: Settings) -> None:
        graph = optimized(model, settings)
        there = main_values(graph.graph)
        self._held: dict[str, tuple[str, QParams]] = {}
        for q in quantizers:
            name = "" if q.quantize is None else str(q.quantize.outputs[0].name)
            if name in there and q.clip is None and q.qparams.block_size is None:
                self._held[str(q.outputs[0].name)] = (name, q.qparams)
        self.tensors = frozenset(self._held)
        names = list(dict.fromkeys(name for name, _ in self._held.values()))
        self._session = Session(graph, optimize=False, tensors=names, what="the optimized model")

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return the codes minus zero point of each of :attr:`tensors`, int64, by tensor."""
        found = self._session.run(feeds, list(dict.fromkeys(name for name, _ in self._held.values())))
        return {tensor: _steps(found[name], qparams) for tensor, (name, qparams) in self._held.items()}


def _steps(codes: Array, qparams: QParams) -> Array:
    zero_point = qparams.zero_point
    if codes.dtype == np.uint8 and qparams.qtype.storage == "int8":
        zero_point = zero_point + 128  # onnxruntime's optimizer makes int8 tensors uint8 on x86
    if qparams.axis is not None:
        zero_point = zero_point.reshape([-1 if d == qparams.axis % codes.ndim else 1 for d in range(codes.ndim)])
    return np.asarray(codes.astype(np.int64) - zero_point)
