"""Training methods: one file a method, its name is the method's name, its class ``Method`` is the quantizer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias, cast

from torch import nn

from onnxqat import discover
from onnxqat.bridge.fake_quantize import DerivedFakeQuantize, FakeQuantize
from onnxqat.graph.qdq import Quantizer

QuantizerFactory: TypeAlias = Callable[[Quantizer, "tuple[nn.Module, nn.Module] | None"], nn.Module]


def names() -> list[str]:
    """The methods that exist."""
    return discover.names(__name__)


def method(name: str) -> type[FakeQuantize]:
    """The quantizer class of method `name`.

    Raises:
        UsageError: ``name-unknown``, with the closest names that exist.
    """
    return cast("type[FakeQuantize]", discover.load(__name__, name).Method)


def factory(name: str) -> QuantizerFactory:
    """What ``to_torch(..., quantizer_factory=...)`` takes to build the quantizers of method `name`.

    A derived bias follows the two quantizers of its layer whatever the method. A bias with a scale of its own keeps
    it: its grid is so fine that there is nothing to learn.

    Raises:
        UsageError: ``name-unknown``.
    """
    return functools.partial(_build, method(name), method("fixed"))


def _build(
    learned: type[FakeQuantize],
    fixed: type[FakeQuantize],
    quantizer: Quantizer,
    sources: tuple[nn.Module, nn.Module] | None,
) -> nn.Module:
    if sources is not None:
        activation, weight = (cast(FakeQuantize, source) for source in sources)
        return DerivedFakeQuantize(quantizer.qparams, activation=activation, weight=weight, tensor=quantizer.tensor)
    kind = fixed if quantizer.role == "bias" else learned
    return kind(quantizer.qparams, tensor=quantizer.tensor, role=quantizer.role)
