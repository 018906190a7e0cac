"""Formulas of integer kernels: numpy and torch give the same bits, and they are those of the targets."""

from __future__ import annotations

import math
import platform
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

from onnxqat import arithmetic
from onnxqat.arithmetic import Accumulator, Grid
from onnxqat.arithmetic._rounding import ROUNDINGS, shift_right
from onnxqat.errors import CheckError, UsageError

A, B = (codes.reshape(-1).astype(np.float32) for codes in np.meshgrid(np.arange(256), np.arange(256)))


def grid(scale: float, zero_point: int, low: int = 0, high: int = 255) -> Grid:
    return Grid(np.float32(scale), np.float32(zero_point), low, high, "t")


def in_torch(value: Any) -> Any:
    if isinstance(value, Grid):
        return Grid(in_torch(value.scale), in_torch(value.zero_point), value.low, value.high, value.tensor)
    return torch.from_numpy(np.asarray(value)) if isinstance(value, (np.ndarray, np.generic)) else value


def random_grids(seed: int, *, power: bool = False) -> list[Grid]:
    rng = np.random.default_rng(seed)
    scales = 2.0 ** rng.integers(-6, -3, 3) if power else rng.uniform(0.01, 0.1, 3)
    if power:
        scales[2] = 2.0**-3
    return [grid(s, z) for s, z in zip(scales, rng.integers(0, 256, 3), strict=True)]


@pytest.mark.parametrize("rounding", [None, *ROUNDINGS])
@pytest.mark.parametrize("name", arithmetic.names())
def test_numpy_and_torch_give_the_same_bits(name: str, rounding: Any) -> None:
    if name == "onnxruntime" and rounding is not None:
        pytest.skip("it has one rounding")
    made = arithmetic.create(name, rounding=rounding)
    a, b, out = random_grids(1, power=name == "shift")
    steps = (A - a.zero_point, B - b.zero_point)
    total = np.arange(-200_000, 200_000, 7).astype(np.float32)
    cases = [
        (made.add, (*steps, a, b, out)),
        (made.multiply, (*steps, a, b, grid(2.0**-3, 9))),
        (made.requantize, (total, np.float32(2.0**-5), np.float32(2.0**-4), grid(2.0**-3, 100))),
        (made.global_average, (total, 49, a, out)),
        (made.average, ([*steps, steps[0]], 3, a, out)),
        *([] if name == "shift" else [(made.average, ([*steps, steps[0]], 1 + A % 9, a, out))]),
    ]
    for function, arguments in cases:
        expected = function(*arguments)
        moved = [list(map(in_torch, v)) if isinstance(v, list) else in_torch(v) for v in arguments]
        found = function(*moved)
        assert found.dtype is torch.float32
        np.testing.assert_array_equal(found.numpy(), expected)
        assert len(np.unique(expected)) > 20


@pytest.mark.parametrize(("operator", "formula"), [("Add", "add"), ("Mul", "multiply")])
@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_two_tensors_as_in_the_default_session(operator: str, formula: str, kind: str) -> None:
    made = getattr(arithmetic.create("onnxruntime"), formula)
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    differing = 0
    for seed in range(12):
        grids = [Grid(g.scale, np.float32(g.zero_point + low), low, high) for g in random_grids(seed)]
        steps = [codes + low - g.zero_point for codes, g in zip((A, B), grids[:2], strict=True)]
        found = made(*steps, *grids) * grids[2].scale
        values = {name: s * g.scale for name, s, g in zip("xu", steps, grids, strict=False)}
        differing += int((between_pairs(operator, kind, grids).run(None, values)[0] != found).sum())
    # Of 786,432 results. Other processors add in another order, and keep int8: other last bits, which show at ties.
    assert differing <= (0 if platform.machine().lower() in ("x86_64", "amd64") else 8000)


def between_pairs(operator: str, kind: str, grids: list[Grid]) -> ort.InferenceSession:
    numbers = ", ".join(
        f"float s{i} = {{{float(g.scale)!r}}}, {kind} z{i} = {{{int(g.zero_point)}}}" for i, g in enumerate(grids)
    )
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    pair (float[N] x, float[N] u) => (float[N] y) <{numbers}> {{
        p = QuantizeLinear(x, s0, z0) a = DequantizeLinear(p, s0, z0)
        q = QuantizeLinear(u, s1, z1) b = DequantizeLinear(q, s1, z1)
        c = {operator}(a, b)
        r = QuantizeLinear(c, s2, z2) y = DequantizeLinear(r, s2, z2) }}""")
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def doubling_high(x: int, multiplier: int) -> int:
    """SaturatingRoundingDoublingHighMul, written with C's division."""
    product = x * multiplier
    nudged = product + (1 << 30 if product >= 0 else 1 - (1 << 30))
    return nudged // (1 << 31) if nudged >= 0 else -((-nudged) // (1 << 31))


def divide_by_power(x: int, exponent: int) -> int:
    """RoundingDivideByPOT."""
    mask = (1 << exponent) - 1
    return (x >> exponent) + int((x & mask) > (mask >> 1) + int(x < 0))


@pytest.mark.parametrize("scale", [0.37, 0.0123, 3.1e-4, 1.9])
def test_fixed_point_as_in_tensorflow_lite(scale: float) -> None:
    activation, weight, out = np.float32(scale), np.float32(0.5), grid(0.25, 7, -100_000, 100_000)
    mantissa, exponent = np.frexp(np.float64(activation) * 0.5 / 0.25)
    multiplier = round(mantissa * 2**31)
    total = np.concatenate([np.arange(-3000, 3000), np.random.default_rng(0).integers(-50_000, 50_000, 3000)])
    left, right = int(max(exponent, 0)), int(max(-exponent, 0))
    expected = [divide_by_power(doubling_high(int(x) << left, multiplier), right) for x in total]
    found = arithmetic.create("fixed-point").requantize(total.astype(np.float64), activation, weight, out)
    np.testing.assert_array_equal(found, np.clip(np.array(expected) + 7, -100_000, 100_000) - 7)


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [
        ("half-even", [-2, -2, -1, 0, 0, 0, 1, 2, 2]),
        ("half-up", [-2, -1, -1, 0, 0, 1, 1, 2, 2]),
        ("half-away", [-2, -2, -1, -1, 0, 1, 1, 2, 2]),
        ("truncate", [-2, -2, -1, -1, 0, 0, 1, 1, 2]),
    ],
)
def test_roundings(rounding: Any, expected: list[int]) -> None:
    halves = np.arange(-4, 5)
    np.testing.assert_array_equal(shift_right(halves, np.int64(1), rounding), expected)
    np.testing.assert_array_equal(shift_right(halves, np.int64(0), rounding), halves)


def test_shift_refuses_what_no_shift_can_do() -> None:
    made = arithmetic.create("shift")
    total = np.ones(1, np.float32)
    with pytest.raises(UsageError, match="scale of tensor 't' is not a power of two"):
        made.requantize(total, np.float32(0.5), np.float32(0.5), grid(0.3, 0))
    with pytest.raises(UsageError, match="'t' would need a shift by -2 bits"):
        made.requantize(total, np.float32(0.5), np.float32(0.5), grid(2.0**-4, 0))


def test_accumulators() -> None:
    total = np.array([-40_000.0, 5.0, 32_767.0, 40_000.0], np.float32)
    np.testing.assert_array_equal(Accumulator(16, "wrap").hold(total, "t"), total.astype(np.int64).astype(np.int16))
    np.testing.assert_array_equal(Accumulator(16, "saturate").hold(total, "t"), [-32768, 5, 32767, 32767])
    assert Accumulator(24, "error").hold(total, "t") is total
    with pytest.raises(CheckError, match="sum of tensor 't' reaches 40000, and 16 bits hold 32767"):
        Accumulator(16, "error").hold(total, "t")
    with pytest.raises(UsageError, match="accumulator of 12 bits"):
        Accumulator(12)


def test_onnxruntime_has_one_rounding() -> None:
    with pytest.raises(UsageError, match="has one rounding"):
        arithmetic.create("onnxruntime", rounding="half-up")
    with pytest.raises(UsageError, match="no rounding 'up'"):
        arithmetic.create("shift", rounding="up")  # type: ignore[arg-type]


def rounded_away(x: float) -> int:
    return int(math.copysign(math.floor(abs(x) + 0.5), x))


def test_averages_of_codes_as_in_tensorflow_lite() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(-128, 128, (4, 500))
    for zero_point in (-128.0, 5.0):
        of = Grid(np.float32(0.1), np.float32(zero_point), -128, 127)
        steps = [(row - zero_point).astype(np.float32) for row in codes]
        found = arithmetic.create("fixed-point").average(steps, 4, of, of) + zero_point
        np.testing.assert_array_equal(found, [rounded_away(total / 4) for total in codes.sum(0)])


def test_averages_on_a_finer_grid_round_once() -> None:
    """The grid of the result has eight steps in one of the input."""
    rng = np.random.default_rng(0)
    steps, counts = rng.integers(0, 16, (9, 500)).astype(np.float32), rng.integers(1, 10, 500).astype(np.float32)
    of, to = Grid(np.float32(0.4), np.float32(0), 0, 255), Grid(np.float32(0.05), np.float32(0), 0, 100_000)
    for count in (9, counts):
        found = arithmetic.create("fixed-point").average(list(steps), count, of, to)
        assert np.abs(found - steps.sum(0) * 8.0 / count).max() <= 0.5 + 1e-4


def test_the_multiplier_of_a_mean_loses_its_fraction() -> None:
    of, to = Grid(np.float32(0.1), np.float32(0), -128, 127), Grid(np.float32(0.037), np.float32(0), -128, 127)
    totals = np.arange(-2400.0, 2400.0)
    mantissa, exponent = np.frexp(np.float64(of.scale) / np.float64(to.scale))
    multiplier, shift = (round(mantissa * 2**31) << 5) // 49, int(exponent) - 5
    expected = [divide_by_power(doubling_high(int(total), multiplier), -shift) for total in totals]
    found = arithmetic.create("fixed-point").global_average(totals, 49, of, to)
    np.testing.assert_array_equal(found, np.clip(expected, -128, 127))


def test_fully_connected_layers_of_litert_round_once() -> None:
    out = grid(0.25, 0, -100_000, 100_000)
    totals = np.arange(-3000.0, 3000.0)
    found = arithmetic.create("litert").requantize_matrix(totals, np.float32(0.37), np.float32(0.5), out)
    ratio = float(np.float32(0.37)) * 0.5 / 0.25
    np.testing.assert_array_equal(found, [rounded_away(total * ratio) for total in totals])


@pytest.mark.parametrize("scale", [0.004, 0.09, 1.3])
def test_softmax_in_fixed_point_is_near(scale: float) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(-128, 128, (1000, 12))
    of, to = Grid(np.float32(scale), np.float32(0), -128, 127), Grid(np.float32(1 / 256), np.float32(-128), -128, 127)
    made = arithmetic.create("litert")
    found = made.softmax(codes.astype(np.float32), of, to)
    powers = np.exp((codes - codes.max(1, keepdims=True)) * np.float64(np.float32(scale)))
    expected = np.minimum(powers / powers.sum(1, keepdims=True) * 256, 255)
    assert np.abs(found - expected).max() <= 0.51  # rounding, and what fixed point of 31 bits adds to it
    of, to = (Grid(torch.tensor(g.scale), torch.tensor(g.zero_point), g.low, g.high) for g in (of, to))
    traced = made.softmax(torch.from_numpy(codes.astype(np.float32)), of, to)
    np.testing.assert_array_equal(traced.numpy(), found)


def test_an_arithmetic_without_a_softmax_says_so() -> None:
    made = (arithmetic.create(name) for name in arithmetic.names())
    without = next(each for each in made if "softmax" not in each.has)
    with pytest.raises(UsageError, match="has no softmax"):
        without.softmax(np.zeros((1, 2), np.float32), grid(1.0, 0), grid(1.0, 0))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_sums_and_products_of_16_bit_codes_stay_in_int64(library: str) -> None:
    """With the shifts of 8-bit codes, 16-bit ones leave int64, and float32 holds no product of two of them."""
    random = np.random.default_rng(0)
    steps = [
        np.concatenate([[65535.0, -65535.0], random.integers(-65535, 65536, 2000)]).astype(np.float32) for _ in "ab"
    ]
    scales = [np.float32(0.0007), np.float32(0.0003)]
    held = np.asarray if library == "numpy" else torch.tensor
    grids = [Grid(held(scale), 0.0, -65535, 65535) for scale in scales]
    output, of_product = (Grid(held(np.float32(scale)), 0.0, -65535, 65535) for scale in (0.002, 0.05))
    made = arithmetic.create("fixed-point")
    given = [held(s) for s in steps]
    a, b = (s.astype(np.float64) * scale for s, scale in zip(steps, scales, strict=True))
    added = np.asarray(made.add(*given, *grids, output))
    assert np.abs(added - (a + b) / 0.002).max() < 1
    product = np.asarray(made.multiply(*given, *grids, of_product))
    assert np.abs(product - np.clip(a * b / 0.05, -65535, 65535)).max() < 1


def test_sums_of_48_bits_have_a_multiplier_of_15() -> None:
    """``MultiplyByQuantizedMultiplier`` of int64 in whole numbers of Python."""
    made = arithmetic.create("fixed-point", accumulator=Accumulator(48))
    totals = np.array([0.0, 1.0, -1.0, 2.0**46, -(2.0**46), 123456789012.0, -98765432109.0])
    for ratio in (0.37, 2.0**-20 * 0.7, 3e-9, 0.99999):
        output = Grid(np.float32(1.0), 0.0, -(1 << 60), 1 << 60)
        found = np.asarray(made.requantize(totals, np.float64(ratio), np.float64(1.0), output), np.float64)
        mantissa, exponent = np.frexp(ratio)
        multiplier = round(mantissa * 2**31)
        reduced = (multiplier + (1 << 15)) >> 16 if multiplier < 0x7FFF0000 else 0x7FFF
        shift = 15 - int(exponent)
        wanted = [(int(total) * reduced + (1 << (shift - 1))) >> shift for total in totals]
        np.testing.assert_array_equal(found, np.array(wanted, np.float32))
