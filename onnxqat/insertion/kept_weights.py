"""Weights that were kept on the grids of the file, whose products saturate on processors of the target."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.backends.schema import Backend
from onnxqat.calibration import saturation
from onnxqat.counts import counted
from onnxqat.graph import query
from onnxqat.types import Remark


def remarks(model: ir.Model, table: Backend) -> list[Remark]:
    """Return a remark on kept weights whose products can saturate: their scales are the user's, and are not raised.

    Args:
        model: with the quantizers that are kept, before any are placed.
        table: the backend that they are to run on.
    """
    if not any(kind.saturates or kind.reduce_range for kind in table.types.values()):
        return []
    found = saturation.layers(model)
    if not found:
        return []
    text = (
        "weights of the file were kept as they are: on processors without VNNI their products of 8-bit codes can saturate "
        f"in {counted(sum(count for _, count in found), 'channel')} of {counted(len(found), 'layer')}; --replace makes them anew, for "
        f"{table.backend} on scales with which they do not, from the values that their codes stand for"
    )
    return [Remark(text, tuple(query.label(node) for node, _ in found), "insert")]
