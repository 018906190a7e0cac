"""The square root of whole numbers by Newton's iteration, from a power of two next to it."""

from __future__ import annotations

from onnxqat.integer_functions.operations import Integers, Operations

STEPS = 5
"""Iterations: the start is at most twice the root, and 1, 1/4, 1/40, 1/3200 are the errors behind each; the last one
settles the last bit."""


def square_root(do: Operations, x: Integers) -> Integers:
    """``floor(sqrt(x))``, or one more, of `x` from 1 to ``2**62 - 1``."""
    starts = [1 << i for i in range(32)]
    places = do.entries_not_above([1 << 2 * i for i in range(31)], x)  # powers of four: 1 at least
    root = do.looked_up(do.constant_table(starts, x), places)
    for _ in range(STEPS):
        root = do.limited(do.shifted(root + do.divided(x, root), 1), 1, 1 << 31)
    return root
