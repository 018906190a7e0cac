"""GridSample and AffineGrid, and sampling at arbitrary positions, which DeformConv uses too."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.nn import functional

from onnxqat.bridge.importing.builder import Lowered, NodeView

# Versions before 20 call the modes by their names in two dimensions.
MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "cubic": "cubic", "bicubic": "cubic"}
PADDINGS = ("zeros", "border", "reflection")
CUBIC_COEFFICIENT = -0.75


def reflect(position: torch.Tensor, low: float, high: Any) -> torch.Tensor:
    """`position` mirrored at `low` and `high` until it lies between them."""
    span = high - low
    if span <= 0:
        return torch.full_like(position, low)
    distance = (position - low).abs()
    turns = torch.floor(distance / span)
    rest = distance - turns * span
    return torch.where(turns % 2 == 0, low + rest, high - rest)


def _border(size: Any, align_corners: bool) -> tuple[float, Any]:
    """The positions at which coordinates are reflected, and beyond which they are clamped."""
    return (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)


def _moved_inside(position: torch.Tensor, size: Any, padding: str, align_corners: bool) -> torch.Tensor:
    if padding == "zeros":
        return position
    low, high = _border(size, align_corners)
    outside = (position < low) | (position > high)
    moved = position.clamp(0, size - 1) if padding == "border" else reflect(position, low, high)
    return torch.where(outside, moved, position)


def _resolved(
    index: torch.Tensor, size: Any, padding: str, align_corners: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A whole position as an index that exists, and whether it did before, for padding with zeros."""
    valid = (index >= 0) & (index <= size - 1) if padding == "zeros" else None
    if padding == "reflection":
        index = reflect(index, *_border(size, align_corners))
    # Clamped as an integer, so that NaN and infinity too give an index that exists.
    return index.to(torch.int64).clamp(0, size - 1), valid


def _cubic_weights(t: torch.Tensor) -> list[torch.Tensor]:
    a = CUBIC_COEFFICIENT
    return [
        ((a * (t + 1) - 5 * a) * (t + 1) + 8 * a) * (t + 1) - 4 * a,
        ((a + 2) * t - (a + 3)) * t * t + 1,
        ((a + 2) * (1 - t) - (a + 3)) * (1 - t) * (1 - t) + 1,
        ((a * (2 - t) - 5 * a) * (2 - t) + 8 * a) * (2 - t) - 4 * a,
    ]


def _neighbours(position: torch.Tensor, mode: str) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
    """The elements along one axis that a position is computed from: place and weight."""
    if mode == "nearest":
        return [(torch.round(position), None)]
    base = torch.floor(position)
    fraction = position - base
    if mode == "linear":
        return [(base, 1 - fraction), (base + 1, fraction)]
    return [(base + offset - 1, weight) for offset, weight in enumerate(_cubic_weights(fraction))]


def sample_positions(
    x: torch.Tensor, positions: list[torch.Tensor], mode: str, padding: str = "zeros", align_corners: bool = False
) -> torch.Tensor:
    """Values of `x` at positions in units of elements, as ONNX's GridSample interpolates.

    Args:
        x: (N, C, d1, ..., dr), float or, for ``nearest``, of any type.
        positions: r tensors (N, L), one an axis in the order of `x`.
        mode: ``nearest``, ``linear`` or ``cubic``.
        padding: what lies outside: ``zeros``, ``border`` or ``reflection``.
        align_corners: whether reflection happens at the centers of the outermost elements, not at their edges.

    Returns:
        (N, C, L).
    """
    sizes = x.shape[2:]
    flat = x.reshape(x.shape[0], x.shape[1], -1)
    if mode == "nearest":
        # Rounded before it is reflected: a tie beyond the edge would go the other way afterwards.
        positions = [torch.round(p) for p in positions]
    if not (mode == "cubic" and padding == "border"):
        # A cubic beyond the border still sees elements inside: torch and onnxruntime repeat the outermost element.
        # (ONNX's reference clamps the position instead.)
        positions = [_moved_inside(p, s, padding, align_corners) for p, s in zip(positions, sizes, strict=True)]
    axes = []
    for position, size in zip(positions, sizes, strict=True):
        near = _neighbours(position, mode)
        axes.append([(*_resolved(place, size, padding, align_corners), weight) for place, weight in near])
    total: torch.Tensor | None = None
    for taps in itertools.product(*axes):
        index = torch.zeros_like(taps[0][0])
        factor: torch.Tensor | None = None
        valid: torch.Tensor | None = None
        for (place, exists, weight), size in zip(taps, sizes, strict=True):
            index = index * size + place
            if weight is not None:
                factor = weight if factor is None else factor * weight
            if exists is not None:
                valid = exists if valid is None else valid & exists
        value = flat.gather(2, index.unsqueeze(1).expand(-1, x.shape[1], -1))
        if valid is not None:
            value = torch.where(valid.unsqueeze(1), value, torch.zeros_like(value))
        if factor is not None:
            value = value * factor.unsqueeze(1).to(value.dtype)
        total = value if total is None else total + value
    assert total is not None
    return total


def positions_of_grid(grid: torch.Tensor, sizes: Any, align_corners: bool) -> list[torch.Tensor]:
    """Normalized coordinates (N, ..., r), innermost axis first, as positions (N, L) of each axis, outermost first."""
    found = []
    for axis, size in enumerate(sizes):
        x = grid[..., len(sizes) - 1 - axis].reshape(grid.shape[0], -1)
        found.append((x + 1) / 2.0 * (size - 1) if align_corners else ((x + 1) * size - 1) / 2.0)
    return found


def sample_grid(x: torch.Tensor, grid: torch.Tensor, mode: str, padding: str, align_corners: bool) -> torch.Tensor:
    """GridSample, any number of spatial dimensions; integers are interpolated as floats and cut."""
    dtype = x.dtype
    shape = [x.shape[0], x.shape[1], *grid.shape[1:-1]]
    if mode != "nearest" and not dtype.is_complex:
        precise = dtype in (torch.float64, torch.int32, torch.int64)
        x = x.to(torch.float64 if precise else torch.float32)
    if grid.dtype is not torch.float64:
        grid = grid.to(torch.float32)
    native = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, "")
    if native and x.dim() in ((4, 5) if mode == "linear" else (4,)) and not dtype.is_complex:
        return functional.grid_sample(x, grid.to(x.dtype), native, padding, align_corners).to(dtype)
    positions = positions_of_grid(grid, x.shape[2:], align_corners)
    return sample_positions(x, positions, mode, padding, align_corners).reshape(shape).to(dtype)


def grid_sample(n: NodeView) -> Lowered:
    """GridSample 16 to 22."""
    mode, padding = str(n.attr("mode", "linear")), str(n.attr("padding_mode", "zeros"))
    if mode not in MODES or padding not in PADDINGS:
        raise n.refuse(f"mode {mode}, padding_mode {padding}")
    return n.call(sample_grid, n.tensor(0), n.tensor(1), MODES[mode], padding, bool(n.attr("align_corners", 0)))


def regular_grid(theta: torch.Tensor, size: Any, align_corners: bool) -> torch.Tensor:
    """Affine maps applied to an even grid between -1 and 1.

    Args:
        theta: (N, r, r + 1).
        size: N, C and r spatial sizes.
        align_corners: whether -1 and 1 are the centers of the outermost elements, not their edges.

    Returns:
        (N, d1, ..., dr, r), coordinates innermost axis first.
    """
    spatial = list(size[2:])
    rank = len(spatial)
    wide = theta.to(torch.float32) if theta.element_size() < 4 else theta
    per_axis = [-1, *[1] * rank, rank]
    result = wide[..., rank].reshape(per_axis)
    for axis, length in enumerate(spatial):
        steps = torch.arange(length, dtype=wide.dtype, device=wide.device)
        if align_corners:
            # A single element has no spacing; like torch, it is put in the middle.
            place = steps * 2 / (length - 1) - 1 if length != 1 else torch.zeros_like(steps)
        else:
            place = (steps * 2 + 1) / length - 1
        shape = [1] * (rank + 2)
        shape[axis + 1] = -1
        result = result + wide[..., rank - 1 - axis].reshape(per_axis) * place.reshape(shape)
    return result.to(theta.dtype)


def affine_grid(n: NodeView) -> Lowered:
    """AffineGrid 20."""
    size = n.ints(1)
    if isinstance(size, list) and len(size) not in (4, 5):
        raise n.refuse(f"a size of {len(size)} numbers")
    return n.call(regular_grid, n.tensor(0), size, bool(n.attr("align_corners", 0)))
