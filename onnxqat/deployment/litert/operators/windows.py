"""Windows that slide over images: padding as SAME or VALID where that is it, else explicit in front of the operator."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from onnxqat.deployment.litert.builder import Builder
from onnxqat.deployment.litert.graph import RefusedError
from onnxqat.deployment.litert.model import Array
from onnxqat.deployment.litert.site import Site
from onnxqat.deployment.litert.values import Value
from onnxqat.graph.windows import same_padding

SAME, VALID = 0, 1
"""Numbers of the schema's ``Padding``."""


@dataclasses.dataclass(frozen=True)
class Window:
    """A window over the two spatial axes of an image.

    Attributes:
        size: of the window.
        strides: between places.
        dilations: between elements.
        before: padding in front of each axis.
        after: padding behind.
    """

    size: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    before: tuple[int, int]
    after: tuple[int, int]

    @property
    def reach(self) -> tuple[int, int]:
        """Elements from the first to the last one of a window."""
        rows, columns = ((size - 1) * step + 1 for size, step in zip(self.size, self.dilations, strict=True))
        return rows, columns

    @property
    def padded(self) -> bool:
        """Check for padding."""
        return any((*self.before, *self.after))

    def kind(self, sizes: Sequence[int]) -> int | None:
        """SAME or VALID, None where padding has to be written.

        Args:
            sizes: of the image.
        """
        if not self.padded:
            return VALID
        for size, stride, reach, before, after in zip(
            sizes, self.strides, self.reach, self.before, self.after, strict=True
        ):
            places = -(-size // stride)
            total = max((places - 1) * stride + reach - size, 0)
            # What lies beyond the last window does not count.
            used = (size + before + after - reach) // stride + 1
            needed = (used - 1) * stride + reach - size - before
            if used != places or before != total // 2 or max(needed, 0) != total - total // 2:
                return None
        return SAME


def window(site: Site, size: Sequence[int], sizes: Sequence[int], places: Sequence[int]) -> Window:
    """The window of a convolution or pool; one axis gets a first one of size 1.

    Args:
        site: the node.
        size: of the window.
        sizes: of the image.
        places: number of windows along each axis, which `ceil_mode` may have made one more.
    """
    rank = len(size)
    strides = list(site.attribute("strides", [1] * rank))
    # A single window may have any stride; with the size of the image as stride, its padding is SAME more often.
    strides = [
        max(stride, n) if count == 1 else stride for stride, n, count in zip(strides, sizes, places, strict=True)
    ]
    dilations = list(site.attribute("dilations", [1] * rank))
    reach = [(n - 1) * step + 1 for n, step in zip(size, dilations, strict=True)]
    before, after = _pads(site, rank, sizes, strides, reach)
    for axis in range(rank):
        needed = (places[axis] - 1) * strides[axis] + reach[axis] - sizes[axis] - before[axis]
        after[axis] = max(after[axis], needed) if site.attribute("ceil_mode", 0) else after[axis]
    if rank == 1:
        return Window((1, size[0]), (1, strides[0]), (1, dilations[0]), (0, before[0]), (0, after[0]))
    if rank != 2:
        raise RefusedError(f"it has windows of {rank} axes; LiteRT has two")
    pairs = (size, strides, dilations, before, after)
    return Window(*((pair[0], pair[1]) for pair in pairs))


def same_with_more(slid: Window, sizes: Sequence[int], places: Sequence[int]) -> list[int] | None:
    """Numbers of rows and columns behind an image that make SAME of the padding of `slid`; None where no number does.

    Only where no window of the result reaches them; what SAME gives beyond `places` is cut off.
    """
    found = []
    for axis, (size, count) in enumerate(zip(sizes, places, strict=True)):
        last = (count - 1) * slid.strides[axis] - slid.before[axis] + slid.reach[axis]
        for more in range(slid.strides[axis]):
            before, _ = same_padding(size + more, slid.reach[axis], slid.strides[axis], upper=True)
            if before == slid.before[axis] and (more == 0 or last <= size):
                found.append(more)
                break
        else:
            return None
    return found


def _pads(
    site: Site, rank: int, sizes: Sequence[int], strides: Sequence[int], reach: Sequence[int]
) -> tuple[list[int], list[int]]:
    kind = site.attribute("auto_pad", "NOTSET")
    if kind in ("SAME_UPPER", "SAME_LOWER"):
        axes = zip(sizes, reach, strides, strict=True)
        pairs = [same_padding(*axis, upper=kind == "SAME_UPPER") for axis in axes]
        return [before for before, _ in pairs], [after for _, after in pairs]
    pads = list(site.attribute("pads", [0] * 2 * rank)) if kind == "NOTSET" else [0] * 2 * rank
    if any(pad < 0 for pad in pads):
        raise RefusedError("it has negative padding")
    return pads[:rank], pads[rank:]


def with_padding(builder: Builder, image: Value, slid: Window, fill: int | float | None = None) -> Value:
    """`image`, which lies channels last, with padding written around it.

    Args:
        builder: what is written to.
        image: four axes.
        slid: the window, whose padding it is.
        fill: number of the padding; None: that of zero, which PAD takes from the grid.
    """
    name = f"{builder.tensors[image.number].name}/padded"
    pads = [[0, 0], *([a, b] for a, b in zip(slid.before, slid.after, strict=True)), [0, 0]]
    shape = list(image.shape)
    for axis, (before, after) in zip(image.layout, pads, strict=True):
        shape[axis] += before + after
    inputs = [image.number, builder.integers(f"{name}/pads", pads)]
    if fill is None:
        return builder.add("PAD", inputs, shape, image.layout, image.grid, name, ("PadOptions", {}))
    kind = np.float32 if image.grid is None else np.int8
    value: Array = np.array([fill], kind)
    inputs.append(builder.constant(f"{name}/fill", value, image.grid))
    return builder.add("PADV2", inputs, shape, image.layout, image.grid, name, ("PadV2Options", {}))


def as_image(site: Site, value: Value) -> Value:
    """`value`, channels last and with two spatial axes; a sequence becomes an image of one row."""
    if len(value.shape) == 3:
        batch, channels, length = value.shape
        value = site.builder.reshaped(value, (batch, channels, 1, length), f"{site.name}/image")
    if len(value.shape) != 4:
        raise RefusedError(f"its input has {len(value.shape)} axes; LiteRT has images of 4")
    return site.builder.laid(value, (0, 2, 3, 1))
