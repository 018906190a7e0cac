"""The largest codes that the inputs of layers have, channel by channel: those of the calibration data, with a margin.

The grid of a tensor ends where its largest channel does; most channels stay far below, and two are hardly ever large at
one place. Other data may have larger values, hence the margin; ``validate`` counts the sums that saturate on its data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.calibration.channel_peaks import ChannelPeaks, Peaks, input_axis
from onnxqat.graph import notes
from onnxqat.types import IntArray, Placement, QParams

MARGIN = 1.5
"""Factor by which values of a channel, and sums of two, are assumed to exceed those of the calibration data.

With 1.25, 7 sums of two products leave 16 bits in 500 other images of a ResNet-20 and 141 in 100 of a MobileNetV2; with
1.5, none in 1,000 and about 7 in 200; with 2, next to no channel is spared.
"""

FEW = 10000
"""Values of a channel that are too few to tell how large others get: the channel may then have any code.

100 images at 7 x 7 places are fewer: with them, 36 sums in the last layers of an EfficientNet-Lite0 left 16 bits in 100
other images.
"""

SHIFT = 128
"""Offset that these kernels add to codes of int8 activations, so that all are at least 0."""


@dataclasses.dataclass(frozen=True, eq=False)
class LargestCodes:
    """Upper bounds of the codes that a layer reads, shifted to unsigned (at least 0) as its kernel has them.

    Attributes:
        channels: largest code of each input channel, int64 (C,).
        sums: largest sum of each two neighbours at one place, int64 (C // 2,); empty where C is odd.
    """

    channels: IntArray
    sums: IntArray


ByNode = Mapping[str, LargestCodes]
"""By the name of the layer."""


def of_layers(nodes: Sequence[ir.Node], placements: Sequence[Placement], peaks: Peaks) -> dict[str, LargestCodes]:
    """The largest codes of those of `nodes` whose input is quantized in 8 bits and was watched for long enough.

    Args:
        nodes: Conv, Gemm or MatMul.
        placements: with the parameters of their inputs.
        peaks: what was watched.
    """
    found = {}
    for node in nodes:
        grid, peak = input_grid(node, placements), peaks.get(str(node.inputs[0].name))  # type: ignore[union-attr]
        if grid is None or not is_byte(grid) or peak is None or peak.axis != input_axis(node):
            continue
        if peak.count >= FEW:
            found[str(node.name)] = _codes(peak, grid)
    return found


def _codes(peak: ChannelPeaks, grid: QParams) -> LargestCodes:
    shift = SHIFT if grid.qtype.storage == "int8" else 0
    # Padding has the code of 0, and so have channels that were never above it.
    highest = np.maximum(peak.highest, 0) * np.float32(MARGIN)
    zero, top = int(grid.zero_point) + shift, grid.qtype.quant_max + shift
    # Each of two values may be rounded up by half a step.
    steps = np.ceil(peak.sums.astype(np.float64) * MARGIN / float(grid.scale)) + 1
    sums = np.minimum(steps + 2 * zero, 2 * top)
    return LargestCodes(numerics.quantize(highest, grid).astype(np.int64) + shift, sums.astype(np.int64))


def input_grid(node: ir.Node, placements: Sequence[Placement]) -> QParams | None:
    """Parameters of the first input of `node`; None where it is read in float."""
    name, use = str(node.inputs[0].name), (str(node.name), 0)  # type: ignore[union-attr]
    return next(
        (p.qparams for p in placements if p.tensor == name and (p.consumers is None or use in p.consumers)), None
    )


def is_byte(grid: QParams) -> bool:
    """Check whether codes on `grid` are stored in 8 bits."""
    return grid.qtype.storage in ("int8", "uint8")


def note(node: ir.Node, codes: LargestCodes) -> None:
    """Write `codes` on the layer that reads them."""
    halves = (np.asarray(half, "<u2").tobytes().hex() for half in (codes.channels, codes.sums))
    node.metadata_props[notes.LARGEST_CODES] = " ".join(halves)


def noted(node: ir.Node) -> LargestCodes | None:
    """Read the largest codes from the note of a layer; None without a valid note."""
    try:
        halves = [bytes.fromhex(half) for half in node.metadata_props.get(notes.LARGEST_CODES, "").split(" ")]
        channels, sums = (np.frombuffer(half, "<u2").astype(np.int64) for half in halves)
    except ValueError:
        return None
    return LargestCodes(channels, sums)
