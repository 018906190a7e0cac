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


def same_padding(size: int, span: int, stride: int, *, upper: bool) -> tuple[int, int]:
    """Padding in front and behind of one axis, with which a window of `span` starts at every `stride`-th element.

    Args:
        size: of the map.
        span: of the window, dilation included.
        stride: from window to window.
        upper: whether an odd element goes behind, ``SAME_UPPER``, or in front.
    """
    both = max((-(-size // stride) - 1) * stride + span - size, 0)
    small, large = both // 2, both - both // 2
    return (small, large) if upper else (large, small)


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
        axes = zip(sizes, spans, strides, strict=True)
        return [same_padding(*axis, upper=mode == "SAME_UPPER") for axis in axes]
    rank = len(sizes)
    flat = [0] * (2 * rank) if mode == "VALID" else [int(p) for p in query.attribute(node, "pads", [0] * (2 * rank))]
    return list(zip(flat[:rank], flat[rank:], strict=True))
