"""Cost of the two ways in which a Concat of grids runs: one grid for all branches, or a requantization of each branch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import onnx_ir as ir

from onnxqat.graph import query
from onnxqat.graph.quantizer import Quantizer
from onnxqat.linting.context import LintContext, is_integer, tensor_of

EXACT = 1e-6
"""Relative distance from which on two scales are two grids: float32 holds seven digits."""


@dataclasses.dataclass(frozen=True)
class Branch:
    """One tensor that a Concat joins.

    Attributes:
        node: the Concat.
        tensor: what it reads.
        scale: step of the branch's grid.
        shared_scale: step of the one grid that holds the ranges of all branches, with the result's number of codes.
        bits_lost: binary digits that the branch loses on that grid; below 0 it gains some.
        requantized: numbers of a sample that are multiplied and shifted where the branch keeps its grid: none where it
            has the grid of the result; None where a size is unknown.
    """

    node: str
    tensor: str
    scale: float
    shared_scale: float
    bits_lost: float
    requantized: int | None


def of_file(file: LintContext) -> Iterator[Branch]:
    """Yield the branches of each Concat whose inputs and result lie on grids of integers, one for each tensor."""
    for node in file.layers("Concat"):
        behind = next((q for q in file.on(node.outputs[0]) if _is_one_grid(q)), None)
        sides = [file.reading(node, index) for index in range(len(node.inputs))]
        known = [q for q in sides if q is not None and _is_one_grid(q)]
        if len(known) < max(len(sides), 2):
            continue
        result = known[0] if behind is None else behind  # without a pair of its own it moves the codes that it reads
        codes = result.qparams.qtype
        low, high = (end(_ends(q)[place] for q in known) for place, end in ((0, min), (1, max)))
        shared = (high - low) / (codes.quant_max - codes.quant_min)
        for value, quantizer in zip(node.inputs, known, strict=True):
            scale = float(quantizer.qparams.scale)
            size = 0 if _same(quantizer, result) else _elements(value)
            yield Branch(query.label(node), tensor_of(quantizer), scale, shared, math.log2(shared / scale), size)


def _is_one_grid(quantizer: Quantizer) -> bool:

    return is_integer(quantizer) and quantizer.qparams.scale.size == 1


def _ends(quantizer: Quantizer) -> tuple[float, float]:
    grid, zero = quantizer.qparams.qtype, int(quantizer.qparams.zero_point.reshape(()))
    scale = float(quantizer.qparams.scale.reshape(()))
    return (grid.quant_min - zero) * scale, (grid.quant_max - zero) * scale


def _same(a: Quantizer, b: Quantizer) -> bool:
    near = math.isclose(float(a.qparams.scale), float(b.qparams.scale), rel_tol=EXACT)
    return near and int(a.qparams.zero_point) == int(b.qparams.zero_point)


def _elements(value: ir.Value | None) -> int | None:
    """Numbers of a sample: the product of the sizes behind the first axis."""
    shape = None if value is None else value.shape
    sizes = None if shape is None else list(shape)[1:]
    if not sizes or not all(isinstance(size, int) for size in sizes):
        return None
    return math.prod(size for size in sizes if isinstance(size, int))
