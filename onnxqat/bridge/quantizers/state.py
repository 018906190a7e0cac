"""Switch the quantizers of a module: off, calibrating, on, for all of them or for those that a pattern names."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Collection, Iterator

from torch import nn

from onnxqat.bridge.quantizers.fake_quantize import STATES, FakeQuantize, State
from onnxqat.errors import UsageError
from onnxqat.types import Role


def quantizers(module: nn.Module) -> Iterator[tuple[str, FakeQuantize]]:
    """The quantizers of `module` with their submodule paths, each once, in registration order."""
    for path, child in module.named_modules():
        if isinstance(child, FakeQuantize):
            yield path, child


def parameter_ids(module: nn.Module) -> set[int]:
    """Identities of the parameters of the quantizers of `module`."""
    return {id(parameter) for _, quantizer in quantizers(module) for parameter in quantizer.parameters()}


def select(
    module: nn.Module, *, roles: Collection[Role] | None = None, tensors: Collection[str] | None = None
) -> list[FakeQuantize]:
    """The quantizers of one of `roles` whose ONNX tensor name matches one of the glob patterns `tensors`.

    None stands for all. A pattern that equals a name matches it even where it holds ``*``, ``?`` or ``[``.

    Raises:
        UsageError: ``pattern-no-match`` for a pattern that no tensor of the module matches, whatever its role.
    """
    found = [q for _, q in quantizers(module)]
    for pattern in tensors or ():
        if not any(_matches(q.tensor, pattern) for q in found):
            raise UsageError(
                "pattern-no-match",
                f"no quantizer has a tensor name that matches {pattern!r}",
                hint="the names are those of the ONNX file; onnxqat.bridge.quantizers.state.quantizers lists them",
            )
    return [
        q
        for q in found
        if (roles is None or q.role in roles) and (tensors is None or any(_matches(q.tensor, p) for p in tensors))
    ]


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def set_state(
    module: nn.Module,
    state: State,
    *,
    roles: Collection[Role] | None = None,
    tensors: Collection[str] | None = None,
) -> int:
    """Put the quantizers that :func:`select` finds into `state` and return how many there are.

    Args:
        module: any module that holds quantizers.
        state: one of :data:`onnxqat.bridge.quantizers.fake_quantize.STATES`.
        roles: only quantizers of these roles.
        tensors: only these ONNX tensors, glob patterns.

    Raises:
        UsageError: ``option-invalid`` for an unknown state, ``pattern-no-match``.
    """
    if state not in STATES:
        raise UsageError("option-invalid", f"there is no state {state!r}", hint=f"one of: {', '.join(STATES)}")
    chosen = select(module, roles=roles, tensors=tensors)
    for quantizer in chosen:
        quantizer.state = state
    return len(chosen)


@contextlib.contextmanager
def state(
    module: nn.Module,
    value: State,
    *,
    roles: Collection[Role] | None = None,
    tensors: Collection[str] | None = None,
) -> Iterator[None]:
    """:func:`set_state` for the length of a ``with`` block; afterwards every quantizer is as it was."""
    before = [(q, q.state) for _, q in quantizers(module)]
    try:
        set_state(module, value, roles=roles, tensors=tensors)
        yield
    finally:
        for quantizer, previous in before:
            quantizer.state = previous
