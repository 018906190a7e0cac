"""The exported model against the module: onnxruntime, as the file is written, and torch on the same tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from onnxqat.analysis.random_draws import DRAWS
from onnxqat.errors import CheckError
from onnxqat.graph import query, walk
from onnxqat.runtime.session import Session
from onnxqat.types import Remark
from onnxqat.validation.compare import parts

TOLERANCE = {torch.float16: 2.0**-6, torch.bfloat16: 2.0**-4}
FLOAT_TOLERANCE = 2.0**-12
"""Largest difference of an output, relative to its largest magnitude: float32 sums in another order, through a deep net."""

_RUN_BY_ONNXRUNTIME = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})


class Checker:
    """Compares what `model` gives with what the module gave.

    Args:
        model: with the inputs and outputs in the order of the module's.

    Attributes:
        remarks: why something could not be compared.

    Raises:
        ModelError: ``model-not-runnable``.
    """

    def __init__(self, model: ir.Model) -> None:
        self.remarks: list[Remark] = []
        self._inputs = [str(v.name) for v in model.graph.inputs]
        self._outputs = [str(v.name) for v in model.graph.outputs]
        foreign = _nodes(
            model, lambda n: n.domain not in _RUN_BY_ONNXRUNTIME and n.op_identifier() not in model.functions
        )
        random = _nodes(model, lambda n: n.op_type in DRAWS)
        self._compare_values = not random
        self._session = None if foreign else Session(model, optimize=False, what="the exported model")
        if foreign:
            text = "not compared with the module: onnxruntime does not know these operators"
            self.remarks.append(Remark(text, foreign, "export"))
        elif random:
            text = "values were not compared with the module, only shapes and types: the graph draws random numbers"
            self.remarks.append(Remark(text, random, "export"))

    def compare(self, inputs: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
        """Run the model on `inputs` and compare.

        Raises:
            CheckError: ``parity-failed`` with the output that differs and by how much.
        """
        if self._session is None:
            return
        feeds = {name: _array(tensor) for name, tensor in zip(self._inputs, inputs, strict=False)}
        known = {info.name for info in self._session.inputs}
        found = self._session.run_list({n: a for n, a in feeds.items() if n in known}, self._outputs)
        for name, value, tensor in zip(self._outputs, found, expected, strict=True):
            self._compare(name, value, tensor)

    def _compare(self, name: str, value: np.ndarray, tensor: Tensor) -> None:
        reference = _array(tensor)
        if value.shape != reference.shape or value.dtype != reference.dtype:
            text = (
                f"{value.dtype} {list(value.shape)} in onnxruntime, {reference.dtype} {list(reference.shape)} in torch"
            )
            raise _differs(name, text)
        if not self._compare_values:
            return
        if not tensor.is_floating_point():
            wrong = int(np.count_nonzero(value != reference))
            if wrong:
                raise _differs(name, f"{wrong} of {value.size} integers differ")
            return
        allowed = TOLERANCE.get(tensor.dtype, FLOAT_TOLERANCE)
        apart = parts(value, reference)
        if apart > allowed:
            raise _differs(name, f"largest difference {apart:.3g} of its largest magnitude, allowed {allowed:.3g}")


def _differs(name: str, text: str) -> CheckError:
    return CheckError(
        "parity-failed",
        f"the exported model does not compute what the module does: output {name!r}: {text}",
        hint="try the other exporter; code that depends on the values of tensors is the most common cause",
    )


def _array(tensor: Tensor) -> np.ndarray:
    found = tensor.detach().cpu().resolve_conj().resolve_neg()
    return np.asarray((found.float() if found.dtype == torch.bfloat16 else found).numpy())


def _nodes(model: ir.Model, wanted: Callable[[ir.Node], bool]) -> tuple[str, ...]:
    return tuple(query.label(node) for node in walk.nodes(model) if wanted(node))
