"""A call of a module as exporters want it: tensors in, tensors out, each with a name; everything else is part of the module."""

from __future__ import annotations

import dataclasses
import inspect
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from onnxqat.errors import DataError, UnsupportedError, UsageError

ExampleInputs = Tensor | Sequence[Any] | Mapping[str, Any]
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")
_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


@dataclasses.dataclass(frozen=True)
class Call:
    """A module with example inputs.

    Attributes:
        module: the caller's module, without a wrapper for several devices or for compilation.
        inputs: the tensors among the example inputs, in order.
        names: their names: the arguments of ``forward``, ``<argument>_<index or key>`` for those inside lists and dicts.
        structure: how tensors and constants make up ``(args, kwargs)``.
        constants: the leaves of `structure`; None stands where a tensor goes.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    names: tuple[str, ...]
    structure: _pytree.TreeSpec
    constants: tuple[Any, ...]

    def run(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The output tensors for `inputs`."""
        return tuple(tensor for _, tensor in self.named_outputs(inputs))

    def named_outputs(self, inputs: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
        """The output tensors with a name: the key in a dict or named tuple, ``output`` or ``output_<index>`` elsewhere.

        Raises:
            UnsupportedError: ``export-failed``: ``forward`` returns something else than tensors.
        """
        left = iter(inputs)
        leaves = [next(left) if constant is None else constant[0] for constant in self.constants]
        args, kwargs = _pytree.tree_unflatten(leaves, self.structure)
        found = _pytree.tree_flatten_with_path(self.module(*args, **kwargs))[0]
        wrong = next((v for _, v in found if not isinstance(v, (Tensor, int, float, str, type(None)))), None)
        if wrong is not None or not any(isinstance(v, Tensor) for _, v in found):
            kind = type(found[0][1] if wrong is None and found else wrong).__name__
            raise UnsupportedError(
                "export-failed",
                f"forward of {type(self.module).__name__} returns {kind}, not tensors",
                hint="return a tensor, or a tuple, list or dict of tensors",
            )
        tensors = [(path, value) for path, value in found if isinstance(value, Tensor)]
        plain = ["output"] if len(tensors) == 1 else [f"output_{i}" for i in range(len(tensors))]
        return [(_key(path) or name, value) for (path, value), name in zip(tensors, plain, strict=True)]

    def flat(self) -> nn.Module:
        """The module with a ``forward`` that takes and returns tensors only; parameters and submodules are the same objects."""
        if isinstance(self.module, torch.jit.ScriptModule):
            return self.module
        view = nn.Module.__new__(type(self.module))
        view.__dict__.update(self.module.__dict__)
        for hooks in _HOOKS:
            view.__dict__[hooks] = OrderedDict()
        run = self.run

        def forward(*tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
            outputs = run(tensors)
            return outputs[0] if len(outputs) == 1 else outputs

        view.__dict__["forward"] = forward
        return view


def call_of(module: nn.Module, example_inputs: ExampleInputs) -> Call:
    """The call ``module(*example_inputs)``, or ``module(**example_inputs)`` for a mapping.

    Raises:
        UsageError: ``option-invalid``: there is no module or no tensor.
        DataError: ``data-shape``: ``forward`` does not take these arguments.
    """
    module = _unwrapped(module)
    args, kwargs = _arguments(example_inputs)
    leaves, structure = _pytree.tree_flatten((args, kwargs))
    inputs = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
    if not inputs:
        raise UsageError(
            "option-invalid", "the example inputs hold no tensor", hint="for example torch.zeros(1, 3, 224, 224)"
        )
    constants = tuple(None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves)
    return Call(module, inputs, tuple(_names(module, args, kwargs)), structure, constants)


def _unwrapped(module: Any) -> nn.Module:
    module = getattr(module, "_orig_mod", module)  # of torch.compile
    while isinstance(module, _WRAPPERS):
        module = module.module
    if not isinstance(module, nn.Module):
        raise UsageError("option-invalid", f"{type(module).__name__} is no torch.nn.Module")
    return module


def _arguments(example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example_inputs, Mapping):
        return (), dict(example_inputs)
    return tuple(example_inputs) if isinstance(example_inputs, (list, tuple)) else (example_inputs,), {}


def _names(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """One name a tensor, in the order of the leaves of ``(args, kwargs)``."""
    signature = inspect.signature(module.forward)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise DataError(
            "data-shape", f"forward of {type(module).__name__} does not take the example inputs: {error}"
        ) from None
    positional = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in signature.parameters.values() if p.kind == p.VAR_POSITIONAL), "input")
    titles = [p.name for p in positional[: len(args)]]
    extra = len(args) - len(titles)
    titles += [rest] if extra == 1 else [f"{rest}_{i}" for i in range(extra)]
    named = [*zip(titles, args, strict=True), *kwargs.items()]
    found = []
    for title, value in named:
        inside = [path for path, leaf in _pytree.tree_flatten_with_path(value)[0] if isinstance(leaf, Tensor)]
        found += ["_".join([title, *(_text(step) for step in path)]) for path in inside]
    return found


def _text(step: Any) -> str:
    return str(next((getattr(step, name) for name in ("key", "idx", "name") if hasattr(step, name)), step))


def _key(path: tuple[Any, ...]) -> str:
    """The names on the way to an output, empty where it has none."""
    return "_".join(map(_text, path)) if path and not hasattr(path[0], "idx") else ""
