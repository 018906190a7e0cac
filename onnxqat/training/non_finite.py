"""Finding what is not finite after a loss or a gradient was not."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from onnxqat.bridge.state import quantizers
from onnxqat.training.batches import Batch
from onnxqat.training.step import call


def first_non_finite(module: nn.Module, batch: Batch) -> str:
    """What is not finite, in the order in which to suspect it: inputs, parameters, quantized tensors in graph order."""
    for name, value in batch.inputs.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            return f"input {name!r} is not finite"
    names = getattr(module, "parameter_names", {})
    tensors = {f"{path}.scale": q.tensor for path, q in quantizers(module)}
    for key, parameter in module.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            if key in tensors:
                return f"the scale of tensor {tensors[key]!r} is not finite"
            return f"parameter {names.get(key, key)!r} is not finite"
    found: list[str] = []

    def hook(quantizer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if not found and not bool(torch.isfinite(arguments[0]).all()):
            found.append(str(quantizer.tensor))

    handles = [q.register_forward_pre_hook(hook) for _, q in quantizers(module)]
    try:
        with torch.no_grad():
            call(module, batch)
    finally:
        for handle in handles:
            handle.remove()
    return f"tensor {found[0]!r} is the first that is not finite" if found else "inputs and parameters are finite"
