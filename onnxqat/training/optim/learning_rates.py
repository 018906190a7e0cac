"""Learning rates of a run: by optimizer and bit width, and for single tensors by name."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping

from torch import nn

from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.errors import UsageError

BY_GRADIENT = frozenset({"asgd", "sgd"})
"""Optimizers whose steps are as large as the gradient."""

BY_SIZE = frozenset({"adafactor"})
"""Optimizers whose steps are relative to the size of the parameter."""

# 8 bits are low, because the usual start is a trained network with folded BatchNormalization, whose gradients are large.
_BY_GRADIENT_RATE = 1e-3
_RATES = ((5, 1e-4), (4, 2e-4), (3, 5e-4), (2, 1e-3))
"""Rate of Adam and its kind from this many bits on: docs/results.md has the measurements at 4 and 2 bits."""
_OWN_RATES = {"adadelta": 1.0, "adafactor": 1e-3}

FEW_BITS = 4
"""Bits up to which a rate can be :func:`high`."""
HIGH = {True: 1e-2, False: 1e-2}
"""The rate from which, by whether steps are as large as the gradient: SGD at 0.01 destroys folded networks in ten
steps; steps of Adam at 0.01 move a weight across a 4-bit grid's interval of a folded network in three to ten."""


def follows_size(optimizer: str) -> bool:
    """Check whether steps of `optimizer` fit the size of a scale, through LSQ's gradient or its own update rule."""
    return optimizer in BY_GRADIENT | BY_SIZE | {"adadelta"}


BATCH = 32
"""Samples in a step that the rates of Adam and its kind are for."""


def default(optimizer: str, module: nn.Module, batch: int | None = None) -> float:
    """The learning rate of weights where the user gives none.

    The fewer bits, the further is a calibrated network from a good one, and the larger are the steps between codes
    that its weights have to cross.

    Args:
        optimizer: name in lower case; empty for one of the user's own.
        module: what is trained; the grid that most of its weights have counts.
        batch: samples in a step. With fewer than :data:`BATCH` the rate of Adam and its kind falls by the root of their
            share (Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", NeurIPS 2022): the
            steps are as long however noisy the gradient is.
    """
    if optimizer in _OWN_RATES:
        return _OWN_RATES[optimizer]
    if optimizer in BY_GRADIENT:
        return _BY_GRADIENT_RATE
    bits = bits_of_weights(module) or 8
    rate = next(rate for least, rate in _RATES if bits >= least)
    return rate * math.sqrt(min(1.0, batch / BATCH)) if batch else rate


def high(optimizer: str, rate: float, module: nn.Module) -> str | None:
    """Why `rate` is high for the bits of the weights; None where it is not.

    Args:
        optimizer: name in lower case.
        rate: of weights.
        module: what is trained.
    """
    bits = bits_of_weights(module)
    if optimizer in _OWN_RATES or bits is None or bits > FEW_BITS or rate < HIGH[optimizer in BY_GRADIENT]:
        return None
    return (
        f"a learning rate of {rate:g} is high for weights of {bits} bits; without one it is "
        f"{default(optimizer, module):g}"
    )


def bits_of_weights(module: nn.Module) -> int | None:
    """Bits of the integer grids that most weights of `module` have; None without one."""
    keys = {onnx_name: key for key, onnx_name in getattr(module, "parameter_names", {}).items()}
    sizes = {key: parameter.numel() for key, parameter in module.named_parameters()}
    counts: dict[int, int] = {}
    for _, q in quantizers(module):
        if q.role == "weight" and not q.derived and not q.qtype.is_float:
            key = keys.get(q.tensor if q.codes_name is None else q.codes_name, "")
            counts[q.qtype.bits] = counts.get(q.qtype.bits, 0) + sizes.get(key, 1)
    return max(counts, key=lambda bits: (counts[bits], bits), default=None)


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
