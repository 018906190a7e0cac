"""Windows of convolutions and pools: how far the map is padded for them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxqat.graph import query


def is_padded(node: ir.Node) -> bool:
    """Check whether a convolution or a pool is padded: by ``pads``, or with ``auto_pad`` SAME, at some sizes of the map."""
    return any(query.attribute(node, "pads", ())) or query.attribute(node, "auto_pad", "NOTSET") not in (
        "NOTSET",
        "VALID",
    )


def padding_of(
    node: ir.Node, sizes: Sequence[int], spans: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """Padding in front and behind, for each spatial axis, stated or from ``auto_pad`` as ONNX's Conv-22 has it.

    Args:
        node: a convolution or a pool.
        sizes: of the map, spatial axes only.
        spans: of the windows, dilation included; looked at with ``auto_pad`` SAME only.
        strides: one for each axis.
    """
    mode = query.attribute(node, "auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        found = []
        for size, span, stride in zip(sizes, spans, strides, strict=True):
            both = max((-(-size // stride) - 1) * stride + span - size, 0)
            small, large = both // 2, both - both // 2
            found.append((small, large) if mode == "SAME_UPPER" else (large, small))
        return found
    rank = len(sizes)
    flat = [0] * (2 * rank) if mode == "VALID" else [int(p) for p in query.attribute(node, "pads", [0] * (2 * rank))]
    return list(zip(flat[:rank], flat[rank:], strict=True))
