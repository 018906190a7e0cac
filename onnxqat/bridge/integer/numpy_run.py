"""The modules of a graph executed in numpy: units and quantizers by the formulas that torch's execution has.

Everything between them, which moves numbers or computes in float, is torch's on the CPU. It is slower than torch
throughout, and needs no bound on sums, parts, tables or tiles: that both give the same bits shows that these are right.

NaN, which a float operator may give, has no code that a formula could take in. Torch's modules pass it on, so that what
went wrong shows at the outputs, and they compute whatever reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from onnxqat import numerics
from onnxqat.bridge.integer.unit import Unit, is_on
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize


def execute(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Compute ``module(*args, **kwargs)``, in numpy where `module` is a unit or a quantizer.

    Args:
        module: of a graph.
        args: CPU tensors and settings.
        kwargs: the same by name.
    """
    held = [a for given in args for a in (given if isinstance(given, (list, tuple)) else (given,))]
    if any(isinstance(a, torch.Tensor) and bool(torch.isnan(a).any()) for a in held):
        return module(*args, **kwargs)
    arrays = [a.detach().numpy() if isinstance(a, torch.Tensor) else a for a in args]
    if isinstance(module, Unit) and module.active():
        return torch.from_numpy(np.asarray(module.in_numpy(*arrays)))
    if isinstance(module, FakeQuantize) and is_on(module) and not module.qtype.is_float and not kwargs:
        return torch.from_numpy(np.asarray(numerics.fake_quantize(arrays[0], module.qparams())))
    return module(*args, **kwargs)
