"""Weights and scales of the worst blocks learned alone, from the best of the calibrated files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from onnxqat.autotune.moves import reconstruct

if TYPE_CHECKING:
    from onnxqat.autotune.search import Search

NAME = "worst blocks reconstructed"

WORST = 4
"""Blocks that learn, a tenth to a quarter of those of the networks that are quantized most often."""


class Move(reconstruct.Move):
    """One run of ``onnxqat.reconstruct`` over few blocks, which takes a part of the time of one over all."""

    name = NAME
    options: ClassVar[dict[str, Any]] = {"recipe": "lsq", "worst_blocks": WORST}
    written = "worst_blocks.qdq.onnx"
    share = 0.2
    until = 0.6

    def seconds(self, search: Search) -> float:
        """See the base class."""
        return self.share * search.clock.seconds
