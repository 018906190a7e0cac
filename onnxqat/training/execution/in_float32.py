"""The file that trains: in float32, since half precision swallows what a step changes, and in QDQ form."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch import fx, nn

from onnxqat.bridge.module import OnnxModule, make
from onnxqat.graph import io, quantized_forms
from onnxqat.passes._base import run_passes
from onnxqat.passes.convert_to_float32 import ConvertToFloat32
from onnxqat.passes.qoperator_to_qdq import to_qdq_form
from onnxqat.types import Remark

_OTHERS = (torch.float16, torch.bfloat16, torch.float64)


class Source:
    """The file that trains, in float32, with operators on codes as pairs.

    Args:
        model: what the user gave; a path or a model of any kind.

    Attributes:
        graph: the model in float32; its inputs and outputs keep their types.
        remarks: that it was converted, where it was.
    """

    def __init__(self, model: io.ModelSource) -> None:
        self._given = model
        loaded = io.load(model)
        form = quantized_forms.form_of(loaded)
        pairs = run_passes(loaded, to_qdq_form() if form is not None and form.kind == "qoperator" else [])
        result = ConvertToFloat32().run(pairs.model)
        self.graph: ir.Model = result.model
        self._converted = result.changed or pairs.changed
        text = "the file does not hold what training changes: it was converted, and is written, in float32"
        self.remarks = (
            *pairs.remarks,
            *result.remarks,
            *((Remark(text, source="finetune"),) if result.changed else ()),
        )
        if pairs.changed:
            text = "operators on codes (QOperator form) hold no quantizers to train: the file is written as QDQ"
            self.remarks = (*self.remarks, Remark(text, source="finetune"))

    @property
    def target(self) -> Any:
        """Model that the trained values are written into: the given one, or the converted graph."""
        return self.graph if self._converted else self._given

    def like_given(self, tuned: Any, output: str | os.PathLike[str] | None) -> Any:
        """`tuned`, what writing into :attr:`target` returned, as the kind that the user gave."""
        if not self._converted:
            return tuned
        return Path(output or "") if isinstance(self._given, (str, os.PathLike)) else io.like(self._given, tuned)


def before_casts(module: nn.Module) -> nn.Module:
    """A view of `module` that returns outputs in float32, from in front of the Cast that gives them another type.

    So neither the loss nor its gradient passes through half precision. Parameters, buffers and submodules are those of
    `module`, which is not changed.

    Args:
        module: of :func:`onnxqat.to_torch`; any other is returned as it is, and so is one without such a Cast.
    """
    if not isinstance(module, OnnxModule) or not any(map(_is_cast, _results(module.graph))):
        return module
    graph = fx.Graph()
    copied: Any = graph.graph_copy(module.graph, {})
    results = list(copied) if isinstance(copied, (tuple, list)) else [copied]
    for index, node in enumerate(results):
        if _is_cast(node):
            results[index] = graph.call_function(torch.Tensor.to, (node.args[0], torch.float32))
            if not node.users:
                graph.erase_node(node)
    graph.output(tuple(results) if isinstance(copied, (tuple, list)) else results[0])
    view = make(module, graph, {})
    view.train(module.training)
    return view


def cast_types(module: OnnxModule) -> tuple[torch.dtype | None, ...]:
    """Return, per output, the type of the Cast that :func:`before_casts` leaves out; None for outputs without one."""
    return tuple(node.args[1] if _is_cast(node) else None for node in _results(module.graph))


def _results(graph: fx.Graph) -> tuple[Any, ...]:
    found = next(node for node in graph.nodes if node.op == "output").args[0]
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def _is_cast(node: Any) -> bool:
    return (
        isinstance(node, fx.Node)
        and node.op == "call_function"
        and node.target is torch.Tensor.to
        and len(node.args) == 2
        and node.args[1] in _OTHERS
    )
