"""Signal processing: Fourier transforms, windows and the mel scale.

Complex numbers are an axis of length 2 in ONNX. Transforms are computed in float64 and rounded once: what cancels is
then exactly 0. The exception is :func:`_inverse_in_halves`.
"""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir
import torch

from onnxqat.bridge.importing.builder import Lowered, NodeView
from onnxqat.bridge.importing.values import Const

# a, b and c of a - b * cos(2 pi n / N) + c * cos(4 pi n / N)
WINDOWS = {"Blackman": (0.42, 0.5, 0.08), "Hamming": (25 / 46, 21 / 46, 0.0), "Hann": (0.5, 0.5, 0.0)}


def _numbers(x: torch.Tensor) -> torch.Tensor:
    """The last axis, of length 1 or 2, as real or complex numbers."""
    wide = x.to(torch.float64)
    return wide[..., 0] if x.shape[-1] == 1 else torch.complex(wide[..., 0], wide[..., 1])


def transform(x: torch.Tensor, length: Any, axis: int, inverse: bool, onesided: bool) -> torch.Tensor:
    """DFT along `axis`.

    Args:
        x: (..., 1), real, or (..., 2), complex.
        length: elements that are transformed, the rest cut or zeros added; None for all.
        axis: counted with the last one, which cannot be transformed.
        inverse: scaled by 1 / length.
        onesided: forward, only the first ``length // 2 + 1`` are returned; inverse, only these are given and the
            result is real.

    Returns:
        (..., 2), or (..., 1) for an inverse one-sided transform.
    """
    numbers = _numbers(x)
    axis = axis % x.dim()
    if inverse and onesided:
        signal: torch.Tensor = torch.fft.irfft(numbers, length, axis)
        return signal.unsqueeze(-1).to(x.dtype)
    if inverse:
        found = _inverse_in_halves(x, axis) if _is_split(x, length, axis) else torch.fft.ifft(numbers, length, axis)
    elif not onesided:
        found = torch.fft.fft(numbers, length, axis)
    elif numbers.is_complex():
        found = torch.fft.fft(numbers, length, axis)
        found = found.narrow(axis, 0, found.shape[axis] // 2 + 1)
    else:
        found = torch.fft.rfft(numbers, length, axis)
    return torch.view_as_real(found.resolve_conj()).to(x.dtype)


def _is_split(x: torch.Tensor, length: Any, axis: int) -> bool:
    """Check whether an inverse transform is taken in halves: complex64, all of an axis of known even length."""
    size = x.shape[axis]
    known = isinstance(size, int) and size > 0 and size % 2 == 0
    return known and length is None and x.dtype is torch.float32 and x.shape[-1] == 2


def _inverse_in_halves(x: torch.Tensor, axis: int) -> torch.Tensor:
    """Inverse DFT in complex64, even and odd frequencies apart, as numpy's begins where a length is even.

    ONNX's test of the inverse holds numpy's rounding errors where the exact value is 0, and a tolerance below them.

    Args:
        x: float32, (..., 2), of even length along `axis`.
        axis: not negative.

    Returns:
        complex64, without the last axis.
    """
    half = x.shape[axis] // 2
    numbers = torch.complex(x[..., 0], x[..., 1])
    first, second = numbers.narrow(axis, 0, half), numbers.narrow(axis, half, half)
    angles = torch.arange(half, dtype=torch.float64, device=x.device) * (math.pi / half)
    turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
    odd = (first - second) * turns.reshape([-1 if a == axis else 1 for a in range(first.dim())])
    halves = [torch.fft.ifft(part, None, axis, "forward") for part in (first + second, odd)]
    return torch.stack(halves, axis + 1).flatten(axis, axis + 1) / (2 * half)


def dft(n: NodeView) -> Lowered:
    """DFT 17, with the axis as an attribute, and 20, with it as an input."""
    length = n.scalar(1) if n.has(1) else None
    given = n.scalar(2) if n.has(2) else -2
    axis = n.attr("axis", 1) if n.opset < 20 else given
    return n.call(transform, n.tensor(0), length, axis, bool(n.attr("inverse", 0)), bool(n.attr("onesided", 0)))


def short_time_transform(
    x: torch.Tensor, step: Any, window: torch.Tensor | None, length: Any, onesided: bool
) -> torch.Tensor:
    """STFT: the DFT of windowed frames.

    Args:
        x: (N, L, 1), real, or (N, L, 2), complex.
        step: elements from frame to frame.
        window: factor of each element of a frame, None for ones.
        length: of a frame; None for that of the window, or of the signal.
        onesided: whether only the first ``length // 2 + 1`` frequencies are returned.

    Returns:
        (N, frames, frequencies, 2).
    """
    if length is None:
        length = x.shape[1] if window is None else window.shape[0]
    frames = x.unfold(1, length, step).movedim(-1, 2)
    if window is not None:
        frames = frames * window.reshape(-1, 1)
    return transform(frames, None, 2, False, onesided)


def stft(n: NodeView) -> Lowered:
    """STFT 17."""
    length = n.scalar(3) if n.has(3) else None
    return n.call(short_time_transform, n.tensor(0), n.scalar(1), n.optional(2), length, bool(n.attr("onesided", 1)))


def window(size: Any, kind: str, periodic: bool, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """One of :data:`WINDOWS`, computed in float64."""
    constant, first, second = WINDOWS[kind]
    number, length = torch.arange(size, dtype=torch.float64, device=device), size if periodic else size - 1
    # In this order the middle of a window is 1 and not just below it, which integer types would cut to 0.
    result = torch.cos(number * (2 * math.pi) / length) * -first + torch.cos(number * (4 * math.pi) / length) * second
    return (result + constant).to(dtype)


def _window(n: NodeView, kind: str) -> Lowered:
    dtype = ir.DataType(n.attr("output_datatype", 1))
    arguments = (kind, bool(n.attr("periodic", 1)), n.torch_dtype(dtype))
    size = n.scalar(0)
    if isinstance(size, int):
        kind, periodic, _ = arguments
        return _constant(n, window(size, kind, periodic, torch.float64, "cpu"), dtype)
    return n.call(window, size, *arguments, n.device())


def _constant(n: NodeView, tensor: torch.Tensor, dtype: ir.DataType) -> Const:
    array = tensor.numpy().astype(dtype.numpy())
    return Const(str(n.node.outputs[0].name or ""), ir.Tensor(array, dtype=dtype), trainable=False)


def blackman_window(n: NodeView) -> Lowered:
    """BlackmanWindow 17."""
    return _window(n, "Blackman")


def hamming_window(n: NodeView) -> Lowered:
    """HammingWindow 17."""
    return _window(n, "Hamming")


def hann_window(n: NodeView) -> Lowered:
    """HannWindow 17."""
    return _window(n, "Hann")


def mel_weights(
    bins: int, length: int, rate: int, low: float, high: float, dtype: torch.dtype, device: Any
) -> torch.Tensor:
    """Triangles, even on the mel scale, that turn a spectrum into one of `bins` bands.

    Args:
        bins: number of bands.
        length: of the DFT that made the spectrum.
        rate: samples a second.
        low: lower edge in hertz.
        high: upper edge in hertz.
        dtype: type of the result.
        device: where the result lives.

    Returns:
        (length // 2 + 1, bins).
    """
    edges = [2595 * math.log10(1 + edge / 700) for edge in (low, high)]
    mels = [edges[0] + i * (edges[1] - edges[0]) / (bins + 2) for i in range(bins + 2)]
    places = [int((length + 1) * 700 * (10 ** (mel / 2595) - 1) // rate) for mel in mels]
    element = torch.arange(length // 2 + 1, dtype=torch.float64).unsqueeze(1)
    left, center, right = (torch.tensor(places[i : bins + i], dtype=torch.float64) for i in range(3))
    # A triangle without a rising side has its peak all the same.
    rising = torch.where(left == center, (element == center).double(), (element - left) / (center - left).clamp(min=1))
    falling = (right - element) / (right - center).clamp(min=1)
    inside = (element >= left) & (element <= center)
    result = torch.where(inside, rising, torch.zeros_like(rising))
    result = torch.where((element >= center) & (element < right), falling, result)
    return result.to(device=device, dtype=dtype)


def mel_weight_matrix(n: NodeView) -> Lowered:
    """MelWeightMatrix 17."""
    dtype = ir.DataType(n.attr("output_datatype", 1))
    given: list[Any] = [n.scalar(i) for i in range(5)]
    if all(isinstance(g, (int, float)) for g in given):
        bins, length, rate, low, high = given
        return _constant(n, mel_weights(bins, length, rate, low, high, torch.float64, "cpu"), dtype)
    return n.call(mel_weights, *given, n.torch_dtype(dtype), n.device())
