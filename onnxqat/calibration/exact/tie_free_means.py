"""Grids for means and products that integer kernels round as QuantizeLinear does.

Results of an average pool, an interpolating Resize or a product are often ties, half-way between two output codes:
fixed-point kernels round these up, QuantizeLinear to even. With an output scale of (1 + 1/2048) times a power of two
times the input scale, results that were ties lie a little nearer to zero, and both round them alike. HTP's multiplier
has 11 bits, enough for this factor. Measured with onnxruntime-qnn 2.7, simulator: 0 of 3,200 codes of a Resize to twice
the size differ (5 % without), and 0 of 65,536 products with one centred zero point (1 % without).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from onnxqat.types import Decision, Fixed, Placement, QuantPlan, TensorSpec

APART = 2.0**-11
APART_BITS = 11
FARTHEST = 64  # limit of the number of times a grid is set apart: ties can make a cycle, which would not end


def center(plan: QuantPlan, placements: list[Placement]) -> list[Placement]:
    """Recentre the zero points of multiplied activations at mid-range.

    HTP multiplies ``(q - zero_point)`` in 16 bits and is exact only if one factor is centred. The scale grows by a
    power of two where needed, so that the representable range shrinks by at most one code. Constants and tensors with
    prescribed or fixed parameters (Sigmoid) are left unchanged.
    """
    kept = {e.tensor for e in plan.edges if isinstance(e.decision, Fixed) or _is_constant(e.decision)}
    factors = {name for found in plan.tie_free_means if len(found.inputs) > 1 for name in found.inputs} - kept
    grids = {_grid(p) for p in placements if p.tensor in factors and p.qparams.qtype.quant_min == 0}
    return [_centered(p) if _grid(p) in grids and not p.prescribed else p for p in placements]


def _is_constant(decision: Decision) -> bool:
    return isinstance(decision, TensorSpec) and decision.role == "weight"


def _centered(placement: Placement) -> Placement:
    qparams = placement.qparams
    middle = (qparams.qtype.quant_max + 1) // 2
    farthest = np.maximum(qparams.zero_point, qparams.qtype.quant_max - qparams.zero_point)
    times = np.where(qparams.zero_point == middle, 1, 2 ** np.ceil(np.log2(farthest / middle)))
    scale, zero_point = np.asarray(qparams.scale * times, np.float32), np.full_like(qparams.zero_point, middle)
    return dataclasses.replace(placement, qparams=dataclasses.replace(qparams, scale=scale, zero_point=zero_point))


def offset_scales(plan: QuantPlan, placements: list[Placement]) -> list[Placement]:
    """Set the grids of `plan.tie_free_means` apart from those of their inputs, by a factor of 1 + 1/2048.

    A mean of means is set apart twice. Tensors of one group keep sharing their parameters, so that a group with an input and
    its mean in it meets rounding ties as before; so does a prescribed grid.

    Args:
        plan: says which tensors are means or products of which.
        placements: all quantizers, activations with scales of few bits.
    """
    by_use = {use: p for p in placements for use in p.consumers or ()}
    by_tensor = {p.tensor: p for p in placements if p.consumers is None}
    edges = []
    for found in plan.tie_free_means:
        read = [by_use.get((found.node, i), by_tensor.get(name)) for i, name in enumerate(found.inputs)]
        before, behind = [_grid(p) for p in read if p is not None], by_tensor.get(found.output)
        if before and behind is not None and not behind.prescribed and _grid(behind) not in before:
            edges.append((before, _grid(behind)))
    times = _times(edges)
    return [_coarser(p, times.get(_grid(p), 0)) for p in placements]


def _times(edges: Sequence[tuple[list[str], str]]) -> dict[str, int]:
    """Number of times that each grid is set apart: once more than all grids together that it is a mean or product of.

    Grids that share their parameters can lead back to themselves. Such a cycle has no number that fits it: the rounds
    end after as many as the longest chain without a cycle can have links, and each number at :data:`FARTHEST`.
    """
    times: dict[str, int] = {}
    for _ in edges:
        before_round = dict(times)
        for inputs, output in edges:
            found = 1 + sum(times.get(grid, 0) for grid in inputs)
            times[output] = min(max(times.get(output, 0), found), FARTHEST)
        if times == before_round:
            break
    return times


def _grid(placement: Placement) -> str:
    return placement.group or placement.tensor


def _coarser(placement: Placement, times: int) -> Placement:
    if not times:
        return placement
    qparams = placement.qparams
    scale = np.asarray(qparams.scale * np.float32(1 + times * APART), np.float32)
    bits = None if qparams.scale_bits is None else qparams.scale_bits + APART_BITS
    return dataclasses.replace(placement, qparams=dataclasses.replace(qparams, scale=scale, scale_bits=bits))
