"""Limits on the memory and time of a model that is tried, which environment variables raise."""

from __future__ import annotations

import os

from onnxqat.errors import UsageError

MEMORY = "ONNXQAT_MEMORY_LIMIT"
"""Environment variable: largest tensor of one sample, in GB; half as much is what a process may take beyond its need."""
SECONDS = "ONNXQAT_TIME_LIMIT"
"""Environment variable: seconds that one sample may take in a model with a Loop, which need not end; opening takes more."""

_GIGABYTE = 2**30
_DEFAULT_MEMORY = 4.0  # no tensor of one sample is known to be larger, in networks that are quantized
_DEFAULT_SECONDS = 60.0
_OPENING = 5  # samples' time for the smallest model, 5 minutes; onnxruntime takes milliseconds
_COMPUTED = 32  # the share of the largest tensor that a constant may take which a small file computes
_GROWTH = 16  # times the weights that it may take in a large one: int4 to float32, twice


def largest_tensor() -> int:
    """Bytes of the largest tensor of one sample that a model may have.

    Raises:
        UsageError: ``option-invalid``: the variable is no positive number.
    """
    return int(_limit_from_environment(MEMORY, _DEFAULT_MEMORY) * _GIGABYTE)


def largest_constant(weights: int) -> int:
    """Bytes of the largest constant that a model with `weights` bytes of weights may compute.

    Raises:
        UsageError: as of :func:`largest_tensor`.
    """
    return max(largest_tensor() // _COMPUTED, _GROWTH * weights)


def seconds() -> float:
    """Seconds that one sample may take in a model with a Loop.

    Raises:
        UsageError: as of :func:`largest_tensor`.
    """
    return _limit_from_environment(SECONDS, _DEFAULT_SECONDS)


def opening_seconds(weights: int) -> float:
    """Seconds that opening a model may take, at 1 MB of its `weights` a second: what takes longer does not come back.

    Raises:
        UsageError: as of :func:`largest_tensor`.
    """
    return _OPENING * seconds() + weights / 2**20


def need(weights: int, tensors: int, *, known: bool) -> int:
    """Bytes by which opening and running a model may make a process grow.

    Args:
        weights: bytes of its weights: in the file, parsed, as constants that are folded, and packed for kernels.
        tensors: bytes of its tensors for what is fed, of which kernels take copies.
        known: whether the sizes of all tensors are known; otherwise half of the memory that is free may be taken.
    """
    wanted = largest_tensor() // 2 + 4 * weights + 4 * tensors
    return wanted if known else max(wanted, _free() // 2)


def _free() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # names that a system does not know
        return 0


def _limit_from_environment(variable: str, default: float) -> float:
    text = os.environ.get(variable, "")
    try:
        number = float(text or default)
    except ValueError:
        number = 0.0
    if not 0.0 < number < float("inf"):
        raise UsageError("option-invalid", f"{variable} is {text!r}", hint=f"set it to a number such as {default:g}")
    return number
