"""Lists that a sensitivity analysis ends in: nodes to leave in float, and the same nodes with more bits."""

from __future__ import annotations

from collections.abc import Sequence

from onnxqat.backends import schema
from onnxqat.errors import BackendError
from onnxqat.placement import table_widths
from onnxqat.validation.profile_result import By, CurvePoint, LayerProfile, TensorProfile

WORST = 3
"""Nodes that are named where no curve says how many it takes."""

ENOUGH_DB = 20.0
"""Signal to noise that is asked for by default: from here on a trial is green."""
HALF_DB = 3.0
"""Decibels of half of the noise, asked for where the output has enough already."""


def level(output_db: float) -> float:
    """Return the signal to noise in dB to reach by default, from that with all quantizers on."""
    return ENOUGH_DB if output_db < ENOUGH_DB else output_db + HALF_DB


def exclude(
    tensors: Sequence[TensorProfile],
    layers: Sequence[LayerProfile],
    curve: Sequence[CurvePoint],
    by: By,
    level_db: float,
) -> tuple[str, ...]:
    """The nodes that cost most until the output reaches `level_db`; :data:`WORST` of them where there is no curve.

    Args:
        tensors: the most sensitive first.
        layers: the same.
        curve: of the cumulative way; empty where it was not taken.
        by: what its points switch off.
        level_db: signal to noise of the worst output.
    """
    if not curve:
        return tuple(layer.node for layer in layers[:WORST])
    reached = next((i for i, point in enumerate(curve) if point.output_db >= level_db), len(curve) - 1)
    names = [point.name for point in curve[1 : reached + 1]]
    if by == "layer":
        return tuple(names)
    readers = {layer.node: set(layer.tensors) for layer in layers}
    found = dict.fromkeys(node for name in names for node, read in readers.items() if name in read)
    return tuple(found)


def bits_of(nodes: Sequence[str], layers: Sequence[LayerProfile], backend: str | None) -> tuple[str, ...]:
    """Values of ``--bits-of`` that give `nodes` activations of 16 bits; those that cannot have these are left out.

    Args:
        nodes: their names.
        layers: their operators.
        backend: name of the table; None where the file does not say.
    """
    try:
        table = None if backend is None else schema.load(backend)
    except BackendError:  # a table of the user's own that is not at hand
        table = None
    width = None if table is None else table_widths.weight_width(table)
    if table is None or width is None:
        return ()
    operators = {layer.node: layer.op_type for layer in layers}
    wide = [node for node in nodes if table_widths.may_be_wide(table, [operators[node]])]
    return tuple(f"{node}={width},{table_widths.WIDE}" for node in wide)
