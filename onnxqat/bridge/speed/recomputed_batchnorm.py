"""BatchNormalization in front of a quantizer, for training: what it gives is computed again in the backward pass.

A quantizer keeps its input, and what BatchNormalization gives is kept by nothing else: one tensor more than in a float
model, in each branch of a residual sum that a backend wants quantized. It follows from what BatchNormalization keeps.
"""

from __future__ import annotations

from torch import fx, nn

from onnxqat.bridge.folded_batchnorm import FoldedBatchNorm
from onnxqat.bridge.lowering.normalization import BatchNorm
from onnxqat.bridge.module import OnnxModule, view
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize


def remake_batch_norm(module: nn.Module) -> nn.Module:
    """A view of `module` that makes such tensors again within :func:`onnxqat.bridge.speed.rematerialize.rematerialized`.

    Outputs and gradients keep their bits. Parameters, buffers and submodules are those of `module`, which is not
    changed. It costs the forward pass of the normalization once more. A quantizer that does the Relu in front of it
    (:func:`onnxqat.bridge.speed.relu_fusion.fuse_relu`) keeps in its input what a float model keeps behind the Relu, so that
    nothing is made again there, nor in subgraphs.

    Args:
        module: of :func:`onnxqat.to_torch`; any other is returned as it is, and so is one without such a pair.
    """
    return view(module, _normalized, _remake)


def _remake(_: fx.Graph, node: fx.Node) -> None:
    node.kwargs = {**node.kwargs, "remade": True}


def _normalized(module: OnnxModule, graph: fx.Graph) -> list[fx.Node]:
    """Calls of BatchNormalization that a quantizer alone reads."""
    found = []
    for node in graph.nodes:
        called = _submodule_of(module, node)
        if isinstance(called, BatchNorm) and not isinstance(called, FoldedBatchNorm) and len(node.users) == 1:
            (reader,) = node.users
            if isinstance(_submodule_of(module, reader), FakeQuantize) and not reader.kwargs:
                found.append(node)
    return found


def _submodule_of(module: OnnxModule, node: fx.Node) -> nn.Module | None:
    return module.get_submodule(str(node.target)) if node.op == "call_module" else None
