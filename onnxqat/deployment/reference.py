"""Outputs of the file handed in, which those of its deploy form and of the compiler are held against."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxqat.backends import schema
from onnxqat.deployment.base_compiler import Array
from onnxqat.runtime.session import Session

Feeds = Mapping[str, Array]

SUMS = 1e-4
"""Share of an output's largest value by which float32 sums in another order may move it: rounding of 2**-24 in each of some
dozen layers, each of which adds up a thousand products."""


def references(one: Session, deploy: ir.Model, batches: list[Feeds], table: schema.Backend) -> tuple[list[Feeds], bool]:
    """Outputs of the file handed in, in onnxruntime with optimizations off, and whether `deploy` gives the same bits.

    Where layers became MatMulNBits, which adds in another order, outputs may differ by :data:`SUMS`.

    Args:
        one: session of the file handed in.
        deploy: its deploy form.
        batches: inputs.
        table: the backend's.
    """
    two = Session(deploy, optimize=False, what="the deploy form")
    reference: list[Feeds] = []
    same = True
    for feeds in batches:
        outputs, other = one.run(feeds), two.run(feeds)
        slack = 0.0 if table.matmul_nbits is None else SUMS
        same &= all(_is_same(a, other[name], slack) for name, a in outputs.items())
        reference.append({name: a for name, a in outputs.items() if a.dtype.kind != "O"})  # words have no steps
    return reference, same


def _is_same(one: Array, other: Array, slack: float) -> bool:
    """Check for equal bits, or for differences of at most `slack` of the largest value."""
    if np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
        return True
    close = one.dtype.kind == "f" and slack > 0
    return close and np.allclose(one, other, rtol=0, atol=slack * float(np.abs(one).max(initial=0)), equal_nan=True)
