"""Sigmoid and Tanh to the bit as onnxruntime computes them, where codes are chosen while a model runs.

DynamicQuantizeLinear takes its scale from the very values that it quantizes, so that the last bit of one value can move
every code behind it, and through the layers a whole result. Elsewhere torch's own, faster functions serve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from onnxqat.arithmetic import _rational
from onnxqat.bridge.lowering import microsoft_recurrent, quantization

if TYPE_CHECKING:
    from onnxqat.bridge.importing.builder import Builder


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """``1 / (1 + exp(-x))`` with onnxruntime's bits for float32; torch's for other types."""
    if x.dtype is not torch.float32:
        return torch.sigmoid(x)
    return cast(torch.Tensor, _rational.sigmoid(x))


def tanh(x: torch.Tensor) -> torch.Tensor:
    """``tanh(x)`` with onnxruntime's bits for float32; torch's for other types."""
    if x.dtype is not torch.float32:
        return torch.tanh(x)
    return cast(torch.Tensor, _rational.tanh(x))


_BITS = {torch.sigmoid: sigmoid, torch.tanh: tanh}


def follow_onnxruntime(builder: Builder) -> None:
    """Exchange the functions of this module for torch's in front of every dynamic quantizer of `builder`'s graph.

    Runs before fusion, which would join ``x * sigmoid(x)``.
    """
    dynamic = (quantization.quantize_dynamically, microsoft_recurrent.quantized_lstm)
    waiting = [node for node in builder.graph.nodes if node.target in dynamic]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if node.op == "call_function" and node.target in _BITS:
            node.target = _BITS[node.target]
        sources = [source for source in node.all_input_nodes if source not in seen]
        seen.update(sources)
        waiting += sources
