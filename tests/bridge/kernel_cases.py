"""Tensors and grids on which every kernel has to give the bits of the reference."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from onnxqat.bridge.kernels import reference
from onnxqat.types import QType

INT32 = (-(2**31), 2**31 - 1)
SPECIAL = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, -1e-45, 1e-40, -3e38, 3e38]


class Case(NamedTuple):
    """What a kernel is called with, in its order, behind a name."""

    name: str
    x: Tensor
    scale: Tensor
    zero_point: Tensor
    quant_min: int
    quant_max: int
    axis: int | None


class Raised(NamedTuple):
    """A learned scale of so many significant bits, of a tensor or of each channel, that the kernel raises itself."""

    bits: int
    axis: int | None


RAISED = [Raised(bits, axis) for bits in (1, 2, 7, 16, 23, 24) for axis in (None, 1)]


def _values(shape: tuple[int, ...], scale: Tensor, axis: int | None, span: int) -> Tensor:
    """Random numbers of which half lie at or one ulp from the middle between two codes, and the special ones."""
    s = reference.along_axis(scale, axis, len(shape))
    ties = (torch.randint(-2 * min(span, 2**20), 2 * min(span, 2**20), shape) + 0.5) * s
    beside = torch.nextafter(ties, torch.randn(shape) * float("inf"))
    plain = torch.randn(shape) * (span / 3) * s
    kind = torch.randint(0, 4, shape)
    x = torch.where(kind == 0, ties, torch.where(kind == 1, beside, plain))
    count = min(x.numel(), len(SPECIAL))
    x.view(-1)[:count] = torch.tensor(SPECIAL[:count])
    return x


def _case(name: str, shape: tuple[int, ...], ends: tuple[int, int], axis: int | None) -> Case:
    channels = () if axis is None else (shape[axis],)
    scale = torch.rand(channels) * 0.1 + 0.003
    zero = torch.zeros(channels) if ends == INT32 else torch.randint(ends[0], ends[1] + 1, channels)
    x = _values(shape, scale, axis, ends[1] - ends[0])
    return Case(name, x, scale, zero.to(torch.int32), *ends, axis)


def cases() -> Iterator[Case]:
    """All of them."""
    torch.manual_seed(0)
    widths = [QType.of(b, signed=s) for b in (2, 3, 4, 5, 6, 7, 8, 16) for s in (True, False)]
    for qtype in (*widths, QType.of(8, signed=True, narrow=True)):
        ends = (qtype.quant_min, qtype.quant_max)
        for axis in (None, 0):
            yield _case(f"{ends[0]}..{ends[1]} axis {axis}", (6, 5, 7), ends, axis)
    for axis in (None, 0, 1, 2, 3, -1):
        case = _case(f"4-d axis {axis}", (3, 5, 7, 11), (0, 255), axis)
        yield case
        last = case.x.to(memory_format=torch.channels_last)
        yield case._replace(name=f"channels_last axis {axis}", x=last)
        yield case._replace(name=f"holes axis {axis}", x=torch.stack([case.x, case.x], -1)[..., 0])
        yield case._replace(name=f"int32 axis {axis}", quant_min=INT32[0], quant_max=INT32[1])
        for dtype in (torch.float16, torch.bfloat16):
            yield case._replace(name=f"{dtype} axis {axis}", x=last.to(dtype))
    for shape, axis in (((1,), None), ((), None), ((4099,), None), ((2, 0, 3), None), ((2, 0, 3), 0), ((0, 3), 0)):
        yield _case(f"{shape} axis {axis}", shape, (-128, 127), axis)
    yield _case("one channel", (1, 700), (-8, 7), 0)
    yield _case("many channels", (1030, 3), (-8, 7), 0)
    yield _case("many rows", (2100, 3), (-8, 7), 1)
    expanded = _case("expanded scale", (5, 9), (-8, 7), 0)
    yield expanded._replace(scale=torch.tensor(0.05).expand(5), zero_point=torch.tensor(0, dtype=torch.int32).expand(5))


def assert_same_bits(found: Tensor, expected: Tensor) -> None:
    """Equal bits, any NaN for a NaN."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    kind = torch.int16 if expected.element_size() == 2 else torch.int32
    same = found.contiguous().view(kind) == expected.contiguous().view(kind)
    assert bool((same | (found.isnan() & expected.isnan())).all())


def check(kernels: Any, case: Case, *, truncates: bool = False) -> None:
    """`kernels` against the reference: bits of forward and of the input's gradient, the scale's within rounding.

    Args:
        kernels: a module with ``fake_quantize`` and ``fake_quantize_backward``.
        case: what to call them with.
        truncates: whether bfloat16 is truncated, as Triton's interpreter does; hardware rounds.
    """
    _, x, scale, zero_point, low, high, axis = case
    found = kernels.fake_quantize(*case[1:])
    if truncates and x.dtype is torch.bfloat16:
        exact = reference.fake_quantize(x.float(), *case[2:])
        assert_same_bits(found, (exact.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16))
    else:
        assert_same_bits(found, reference.fake_quantize(*case[1:]))
    grad = torch.randn(x.shape).to(x)
    grad_x, grad_scale = kernels.fake_quantize_backward(grad, *case[1:])
    expected, _ = reference.fake_quantize_backward(grad, *case[1:])
    assert expected is not None
    assert_same_bits(grad_x, expected)
    assert grad_scale.dtype is torch.float32
    assert grad_scale.shape == scale.shape
    finite = torch.where(x.isnan(), 0.0, x)
    each = _summands(torch.where(x.isnan(), 0.0, grad), finite, scale, zero_point, low, high, axis)
    _, of_finite = kernels.fake_quantize_backward(torch.where(x.isnan(), 0.0, grad), finite, *case[2:])
    bound = reference.sum_to_scale(each.abs(), axis) * 2e-6 + 1e-12
    assert bool(((of_finite.double() - reference.sum_to_scale(each, axis)).abs() <= bound).all())
    for needs in ((True, False), (False, True)):
        partial = kernels.fake_quantize_backward(grad, *case[1:], needs=needs)
        assert tuple(p is not None for p in partial) == needs
    if x.dtype is not torch.bfloat16 or not truncates:
        check_of_relu(kernels, case, grad)


def check_raised(kernels: Any, raised: Raised) -> None:
    """Scales at or below zero, subnormal, next to a short one and ordinary: as of the reference, which raises first."""
    torch.manual_seed(0)
    below, short, above = (float(torch.nextafter(torch.tensor(0.5), torch.tensor(end))) for end in (0.0, 0.5, 1.0))
    special = [0.0, -1.0, 1e-45, 1e-42, 9e-39, 1e-31, below, short, above, 1e30, float("nan")]
    for scale in (
        [torch.tensor([*special, *(torch.rand(200) * 0.1).tolist()])] if raised.axis else map(torch.tensor, special)
    ):
        zero_point = torch.full(scale.shape, 3, dtype=torch.int32)
        same = reference.raised(scale, raised.bits)
        assert bool((same > 0).logical_or(same.isnan()).all())
        x = torch.randn(4, 1 if raised.axis is None else len(scale), 3) * reference.along_axis(same, raised.axis, 3) * 9
        grad, grid = torch.randn(x.shape), (zero_point, -128, 127, raised.axis)
        assert_same_bits(
            kernels.fake_quantize(x, scale, *grid, raised_to=raised.bits), reference.fake_quantize(x, same, *grid)
        )
        found = kernels.fake_quantize_backward(grad, x, scale, *grid, raised_to=raised.bits)
        expected = kernels.fake_quantize_backward(grad, x, same, *grid)
        for one, other in zip(found, expected, strict=True):
            assert_same_bits(one, other)


def check_of_relu(kernels: Any, case: Case, grad: Tensor) -> None:
    """The same with Relu in front."""
    grids = (case.scale, case.zero_point, case.quant_min, case.quant_max, case.axis)
    found = kernels.fake_quantize(*case[1:], relu=True)
    assert_same_bits(found, reference.fake_quantize(torch.relu(case.x), *grids))
    grad_x, grad_scale = kernels.fake_quantize_backward(grad, *case[1:], relu=True)
    of_relu, same_scale = reference.fake_quantize_backward(grad, torch.relu(case.x), *grids)
    expected = torch.ops.aten.threshold_backward(of_relu, case.x, 0)
    torch.testing.assert_close(grad_x, expected, rtol=0, atol=0, equal_nan=True)  # a zero of either sign
    torch.testing.assert_close(grad_scale, same_scale, rtol=1e-4, atol=1e-4, equal_nan=True)


def _summands(
    grad: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, axis: int | None
) -> Tensor:
    """What each element adds to the gradient of the scale: the formula in float64 on the float32 quotient."""
    zero = reference.along_axis(zero_point, axis, x.ndim).double()
    v = (x.float() / reference.along_axis(scale, axis, x.ndim)).double()
    clamped = torch.minimum(torch.maximum(v, low - zero), high - zero)
    return (clamped.round() - torch.where(v == clamped, v, 0.0)) * grad.double()
