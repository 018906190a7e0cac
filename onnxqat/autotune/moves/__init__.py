"""Moves of a search, one file each; what costs least comes first."""

from __future__ import annotations

from onnxqat import discover
from onnxqat.autotune.moves._base import Move

ORDER = (
    "calibrate",
    "observers",
    "equalize",
    "compensate",
    "sensitive_layers",
    "reconstruct_worst",
    "finetune",
    "reconstruct",
    "finetune_again",
)
"""Names of the files in the order in which a search makes its moves; ``finetune_again`` until the time is over."""


def all_moves() -> tuple[Move, ...]:
    """One move of each kind, in order."""
    return tuple(discover.load(__name__, name).Move() for name in ORDER)
