"""A module and example inputs from words of the command line: ``package.module:function`` and ``image=1,3,224,224``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from onnxqat.data.sources import import_function
from onnxqat.errors import DataError, QatError, UsageError

SEED = 0


def module_of(text: str) -> nn.Module:
    """The module that ``package.module:function`` returns, or the one that ``package.module:name`` is.

    Raises:
        DataError: ``data-not-found``: nothing can be imported under this name, or it fails; ``data-format``: what it
            returns is no module.
    """
    if not text.partition(":")[2] or os.sep in text.partition(":")[0]:
        hint = "for example torchvision.models:resnet18, or my_models:make"
        raise UsageError("option-invalid", f"{text!r} is not of the form package.module:function", hint=hint)
    found: Any = import_function(text)
    if not isinstance(found, nn.Module):
        try:
            found = found()
        except QatError:
            raise
        except Exception as error:  # whatever the user's function raises
            raise DataError("data-not-found", f"{text} fails: {type(error).__name__}: {error}") from None
    if not isinstance(found, nn.Module):
        raise DataError("data-format", f"{text} returns {type(found).__name__}, not a torch.nn.Module")
    return found


def examples(shapes: Sequence[str]) -> tuple[Tensor, ...] | dict[str, Tensor]:
    """Example inputs of the given shapes: normal floats, zeros for integers and booleans, the same each time.

    Args:
        shapes: each ``1,3,224,224`` or ``ids=1,128:int64``; names for all, which are then arguments of ``forward``, or
            for none.

    Raises:
        UsageError: ``option-invalid``.
    """
    generator = torch.Generator().manual_seed(SEED)
    found = [_example(text, generator) for text in shapes]
    if not found or len({bool(name) for name, _ in found}) > 1:
        raise UsageError(
            "option-invalid", "give the shape of every input, with a name for all of them or for none", hint=_HINT
        )
    return dict(found) if found[0][0] else tuple(tensor for _, tensor in found)


_HINT = "for example --example-shape 1,3,224,224, or --example-shape ids=1,128:int64"


def _example(text: str, generator: torch.Generator) -> tuple[str, Tensor]:
    name, _, rest = text.rpartition("=")
    sizes, _, kind = rest.partition(":")
    dtype = getattr(torch, kind or "float32", None)
    parts = [part.strip() for part in sizes.replace("x", ",").split(",")] if sizes.strip() else []
    if not isinstance(dtype, torch.dtype) or not all(part.isdecimal() for part in parts):
        raise UsageError("option-invalid", f"{text!r} is no shape", hint=_HINT)
    shape = [int(part) for part in parts]
    if dtype.is_floating_point:
        return name, torch.randn(shape, generator=generator).to(dtype)
    return name, torch.zeros(shape, dtype=dtype)
