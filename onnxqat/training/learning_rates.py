"""Which learning rate a run gets: by optimizer and bit width, and for single tensors by name."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping

from torch import nn

from onnxqat.bridge.state import quantizers
from onnxqat.errors import UsageError

BY_GRADIENT = frozenset({"asgd", "sgd"})
"""Optimizers whose steps are as large as the gradient."""

BY_SIZE = frozenset({"adafactor"})
"""Optimizers whose steps are relative to the size of the parameter."""

# Low, because the usual start is a trained network with folded BatchNormalization, whose gradients are large.
_BY_GRADIENT_RATE = 1e-3
_RATE = 1e-4
_OWN_RATE = {"adadelta": 1.0, "adafactor": 1e-3}


def follows_size(optimizer: str) -> bool:
    """Whether steps of `optimizer` fit the size of a scale by themselves, as LSQ's gradient does or the optimizer."""
    return optimizer in BY_GRADIENT | BY_SIZE | {"adadelta"}


def default(optimizer: str, module: nn.Module) -> float:
    """The learning rate of weights where the user gives none.

    Args:
        optimizer: name in lower case; empty for one of the user's own.
        module: what is trained; the narrowest grid of its weights counts.
    """
    if optimizer in _OWN_RATE:
        return _OWN_RATE[optimizer]
    return _BY_GRADIENT_RATE if optimizer in BY_GRADIENT else _RATE


def narrowest(module: nn.Module) -> int | None:
    """Bits of the narrowest integer grid of a weight in `module`; None without one."""
    return min(
        (q.qtype.bits for _, q in quantizers(module) if q.role == "weight" and not q.qtype.is_float), default=None
    )


def factors(module: nn.Module, patterns: Mapping[str, float]) -> dict[str, float]:
    """Factor on the learning rate of parameters by state dict key; those without one are left out.

    Args:
        module: what :func:`onnxqat.to_torch` made.
        patterns: glob pattern of ONNX tensor names -> factor >= 0. A pattern names a constant, or a tensor whose
            quantizer's scale it means; the last that matches wins.

    Raises:
        UsageError: ``pattern-no-match``, ``option-invalid`` for a factor that is negative or not finite.
    """
    names: dict[str, str] = dict(getattr(module, "parameter_names", {}))
    for path, q in quantizers(module):
        names.update({f"{path}.{key}": q.tensor for key, _ in q.named_parameters()})
    found = {}
    keys = [key for key, _ in module.named_parameters()]
    for pattern, factor in patterns.items():
        if not (math.isfinite(factor) and factor >= 0):
            raise UsageError("option-invalid", f"the learning-rate factor of {pattern!r} is {factor}; it must be >= 0")
        matching = [k for k in keys if names.get(k, k) == pattern or fnmatch.fnmatchcase(names.get(k, k), pattern)]
        if not matching:
            raise UsageError(
                "pattern-no-match",
                f"no constant and no quantized tensor has a name that matches {pattern!r}",
                hint="the names are those of the ONNX file",
            )
        found.update(dict.fromkeys(matching, float(factor)))
    return found
