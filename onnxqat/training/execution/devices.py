"""The device of a run, and its random generators."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterator

import numpy as np
import torch

from onnxqat.errors import UsageError
from onnxqat.training.loop.random_state import RandomState


def place(device: str | torch.device | None) -> torch.device:
    """The device called `device`; None: CUDA where there is one.

    Raises:
        UsageError: ``option-invalid``.
    """
    try:
        found = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise UsageError("option-invalid", f"there is no device {str(device)!r}", hint="cpu or cuda") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("option-invalid", "torch finds no CUDA device here", hint="choose the device cpu")
    return found


def check_seed(seed: int) -> None:
    """Refuse a seed that numpy or torch does not take, before anything is read.

    Raises:
        UsageError: ``option-invalid``.
    """
    if not 0 <= seed < 2**63:
        raise UsageError("option-invalid", f"the seed is {seed}; it must be at least 0 and below 2**63")


def current(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make a GPU the current one for the length of a ``with`` block: random states and kernels are those of it."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """The random generators of torch, numpy and Python seeded for the length of a ``with`` block."""
    before = RandomState.capture()
    with current(device), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - what a user's function may draw from
        try:
            yield
        finally:
            dataclasses.replace(before, cuda=None).restore()
