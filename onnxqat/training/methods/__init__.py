"""Training methods: one file per method, named like it; its class ``Method`` is the quantizer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TypeAlias, cast

import numpy as np
import torch
from torch import nn

from onnxqat import discover, extension, numerics
from onnxqat.bridge.module import OnnxModule
from onnxqat.bridge.quantizers.derived_fake_quantize import DerivedFakeQuantize
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.bridge.quantizers.step_limit import StepLimit
from onnxqat.errors import UsageError
from onnxqat.graph import folded_batchnorm, query
from onnxqat.graph.quantizer import Quantizer
from onnxqat.training.methods import _found
from onnxqat.types import Role

QuantizerFactory: TypeAlias = Callable[[Quantizer, "tuple[nn.Module, nn.Module] | None"], nn.Module]


def names() -> list[str]:
    """The methods that exist."""
    return discover.names(__name__)


def method(name: str) -> type[FakeQuantize]:
    """The quantizer class of method `name`.

    Args:
        name: a file of this package, an entry point of the group ``onnxqat.methods``, or the path of a file ``*.py``.

    Raises:
        UsageError: ``name-unknown``, with the closest names that exist; ``option-invalid`` for a file without a method.
        UnsupportedError: ``quantizer-unsupported`` for a method that no Q/DQ pair can hold.
    """
    return cast("type[FakeQuantize]", _found.definition(name).Method)


def key_of(name: str) -> str:
    """Return the name of a method for records: `name` itself, or the stem of a user's file."""
    return extension.key_of(name)


def factory(name: str, *, weights: str | None = None, limit_steps: bool = True) -> QuantizerFactory:
    """Return the ``quantizer_factory`` with which ``to_torch`` builds the quantizers of method `name`.

    Args:
        name: the method.
        weights: another method for weights; None: the same.
        limit_steps: limit the change of a scale in one optimizer step (:mod:`onnxqat.bridge.quantizers.step_limit`), as the
            default quantizers of ``to_torch`` do; False for a loop that guards scales itself.

    A derived bias follows the two quantizers of its layer whatever the method. A bias with a scale of its own keeps
    it: its grid is so fine that there is nothing to learn.

    Raises:
        UsageError: ``name-unknown``.
    """
    kinds: dict[Role, type[FakeQuantize]] = {
        "activation": method(name),
        "weight": method(weights or name),
        "bias": method("fixed"),
    }
    return functools.partial(_build, kinds, limit_steps)


def freeze_weights(module: OnnxModule) -> None:
    """Take the gradient from master weights of methods that learn how to round them and nothing else."""
    held = {name: key for key, name in module.parameter_names.items()}
    for _, quantizer in quantizers(module):
        if quantizer.freezes_weights and quantizer.role == "weight":
            for name in (quantizer.codes_name, quantizer.tensor):
                if name in held:
                    module.get_parameter(held[name]).requires_grad_(False)


def _build(
    kinds: Mapping[Role, type[FakeQuantize]],
    limit_steps: bool,
    quantizer: Quantizer,
    sources: tuple[nn.Module, nn.Module] | None,
) -> nn.Module:
    """Make the fake-quantizer of one quantizer: derived for a bias, else the method's for its role."""
    if sources is not None:
        activation, weight = (cast(FakeQuantize, source) for source in sources)
        return DerivedFakeQuantize(quantizer.qparams, activation=activation, weight=weight, tensor=quantizer.tensor)
    kind = kinds[quantizer.role]
    constant = folded_batchnorm.held(quantizer) if quantizer.role == "weight" else None
    computed = constant is not None and query.constant_tensor(quantizer.input) is None
    if kind.transforms_weight and computed:
        raise UsageError(
            "option-invalid",
            f"a method that writes weights of its own cannot train {quantizer.tensor}, which the graph computes from a "
            f"BatchNormalization that is kept: {_WHY_FOLDED[kind.freezes_weights]}",
            hint="choose another method, or fold it first: onnxqat fold-batchnorm",
        )
    if kind.transforms_weight and quantizer.role == "weight" and not _is_only_consumer(quantizer):
        kind = FakeQuantize  # what else reads the constant would read what the method makes of it
    made = kind(quantizer.qparams, tensor=quantizer.tensor, role=quantizer.role)
    made.limit = StepLimit() if limit_steps else None
    if constant is not None:
        made.start(torch.from_numpy(_float_values(constant, quantizer)))
    return made


_WHY_FOLDED = {
    False: "what is written would have to be divided by gamma, which may be 0",
    True: "it chooses between the codes next to a weight that stays, and this one moves with gamma and the statistics",
}
"""Reason to fold BatchNormalization, by whether the method leaves master weights as they are."""


def _is_only_consumer(quantizer: Quantizer) -> bool:
    """Check whether the quantizer is the only consumer of the constant that it quantizes."""
    users = [node for node, _ in quantizer.input.uses()]
    return len(users) == 1 and users[0] in quantizer.nodes and not quantizer.input.is_graph_output()


def _float_values(constant: np.ndarray, quantizer: Quantizer) -> np.ndarray:
    """The float32 values of a weight, from its codes where the file stores those."""
    if not quantizer.stored:
        return np.array(constant, np.float32)
    qparams = quantizer.qparams
    return numerics.dequantize(np.asarray(constant).astype(qparams.qtype.computed_type), qparams)
