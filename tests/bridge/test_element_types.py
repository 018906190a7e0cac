"""Every element type of ONNX: containers, casts, and arithmetic on what torch has no kernels for."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper
from onnx.reference.ops.op_cast import cast_to

from onnxqat.bridge.functional import low_precision, unsigned_types
from onnxqat.bridge.importing import values
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UnsupportedError

FLOAT8 = ["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"]
SMALL_FLOATS = [*FLOAT8, "FLOAT4E2M1", "FLOAT6E2M3", "FLOAT6E3M2"]
HALVES = np.arange(65536, dtype=np.uint16).view(np.float16)
UNSIGNED = [np.uint16, np.uint32, np.uint64]


def bits_of(x: torch.Tensor) -> np.ndarray:
    return x.view(torch.uint8).numpy()


def numpy_type(kind: str) -> np.dtype:
    return ir.DataType[kind].numpy()


def same_but_for_nan_payload(found: np.ndarray, wanted: np.ndarray) -> None:
    """Bits are equal, except that one NaN is as good as another of its sign."""
    nan = np.isnan(wanted.astype(np.float32))
    assert np.array_equal(np.isnan(found.astype(np.float32)), nan)
    assert np.array_equal(found.view(np.uint8)[~nan], wanted.view(np.uint8)[~nan])


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("kind", SMALL_FLOATS)
def test_every_half_is_rounded_as_in_the_reference(kind: str, saturate: bool) -> None:
    given = HALVES[~np.isnan(HALVES)] if kind not in FLOAT8 else HALVES  # float4 and float6 have no NaN
    found = bits_of(low_precision.encode(torch.from_numpy(given.copy()), kind, saturate)).view(numpy_type(kind))
    with np.errstate(invalid="ignore"):
        wanted = cast_to(given, int(ir.DataType[kind]), saturate)
    same_but_for_nan_payload(found, wanted)


@pytest.mark.parametrize("kind", SMALL_FLOATS)
def test_single_and_double_are_rounded_once(kind: str) -> None:
    """Around every tie: the tie itself, and the nearest float32 and float64 on both sides of it."""
    spec = low_precision.FLOAT_FORMATS[kind]
    dtype = numpy_type(kind)
    codes = np.arange(2 ** (1 + spec.exponent + spec.mantissa), dtype=np.uint8).view(dtype).astype(np.float64)
    known = np.unique(codes[np.isfinite(codes)])
    ties = (known[1:] + known[:-1]) / 2
    for wide in (np.float32, np.float64):
        tie = ties.astype(wide)
        near = np.concatenate([tie, np.nextafter(tie, wide(np.inf)), np.nextafter(tie, wide(-np.inf))])
        found = values.array(low_precision.encode(torch.from_numpy(near), kind), ir.DataType[kind]).astype(np.float64)
        lower = known[np.searchsorted(known, near, side="right") - 1]
        upper = known[np.minimum(np.searchsorted(known, near, side="left"), len(known) - 1)]
        up, down = upper - near, near - lower
        assert np.array_equal(found[up < down], upper[up < down])
        assert np.array_equal(found[up > down], lower[up > down])
        even = bits_of(low_precision.encode(torch.from_numpy(near), kind))[up == down]
        assert not (even & 1).any()


@pytest.mark.parametrize("kind", [*SMALL_FLOATS, "FLOAT8E8M0"])
def test_every_code_is_read(kind: str) -> None:
    codes = np.arange(2 ** ir.DataType[kind].bitwidth, dtype=np.uint8).view(numpy_type(kind))
    found = low_precision.decode(values.tensor(codes, ir.DataType[kind]), kind).numpy()
    np.testing.assert_array_equal(found, codes.astype(np.float32))
    signed = ~np.isnan(found)
    assert np.array_equal(np.signbit(found[signed]), np.signbit(codes.astype(np.float32)[signed]))


@pytest.mark.parametrize("kind", values.CONTAINERS, ids=lambda kind: kind.name)
def test_containers_hold_every_code(kind: ir.DataType) -> None:
    if kind.name in low_precision.SMALL_INTEGERS:
        bits, signed = low_precision.SMALL_INTEGERS[kind.name]
        low = -(2 ** (bits - 1)) if signed else 0
        codes = np.arange(low, low + 2**bits).astype(kind.numpy())
    else:
        codes = np.arange(2**kind.bitwidth, dtype=np.uint8).view(kind.numpy())
    held = values.tensor(codes.reshape(2, -1), kind)
    assert held.dtype is values.CONTAINERS[kind]
    back = values.array(held, kind)
    assert back.dtype == kind.numpy()
    assert back.tobytes() == codes.tobytes()


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_powers_of_two_are_rounded_as_in_the_reference(mode: str) -> None:
    """All finite positive halves, and float32 over the whole range but its subnormal end (see the next test)."""
    random = np.random.default_rng(0)
    singles = random.integers(0x00800000, 0x7F800000, 200_000, dtype=np.uint32).view(np.float32)
    halves = HALVES[(HALVES > 0) & np.isfinite(HALVES)].astype(np.float32)
    for x in (singles, halves):
        found = bits_of(low_precision.encode(torch.from_numpy(x), "FLOAT8E8M0", True, mode))
        wanted = cast_to(x, int(ir.DataType.FLOAT8E8M0), True, mode).view(np.uint8)
        np.testing.assert_array_equal(found, wanted)


SMALLEST, LARGEST = 2.0**-127, 2.0**127
TABLE = [  # Cast 28's table of float8e8m0, and the neighbours of the ends of its range
    (0.0, 0, 255),
    (np.nan, 255, 255),
    (np.inf, 254, 255),
    (LARGEST * 1.75, 254, 255),
    (SMALLEST * 0.75, 0, 255),
    (SMALLEST, 0, 0),
    (LARGEST, 254, 254),
    (1.0, 127, 127),
]


@pytest.mark.parametrize(("x", "saturated_up", "nearest"), TABLE)
def test_powers_of_two_follow_the_table_of_cast(x: float, saturated_up: int, nearest: int) -> None:
    """Where onnx's reference differs from the text of the operator (0, infinity, subnormal numbers), the text counts."""
    given = torch.tensor([x], dtype=torch.float64).to(torch.float32)
    assert low_precision.encode(given, "FLOAT8E8M0", True, "up").item() == saturated_up
    assert low_precision.encode(given, "FLOAT8E8M0", False, "nearest").item() == nearest


def test_double_becomes_half_with_one_rounding() -> None:
    """``1 + 2^-11 + 2^-40`` lies above a tie; float32 on the way would make it the tie, which goes down."""
    given = torch.tensor([1 + 2**-11 + 2**-40], dtype=torch.float64, requires_grad=True)
    result = low_precision.narrow_double(given, "FLOAT16")
    assert result.item() == 1 + 2**-10
    assert given.to(torch.float16).item() == 1.0
    result.sum().backward()
    assert given.grad.item() == 1.0


@pytest.mark.parametrize("kind", low_precision.SMALL_INTEGERS)
def test_integers_lose_their_high_bits(kind: str) -> None:
    bits, signed = low_precision.SMALL_INTEGERS[kind]
    x = torch.arange(-300, 300)
    found = low_precision.encode(x, kind).to(torch.int64)
    assert torch.equal((found - x) % 2**bits, torch.zeros_like(x))
    low = -(2 ** (bits - 1)) if signed else 0
    assert found.min() == low
    assert found.max() == low + 2**bits - 1


# --- unsigned integers ----------------------------------------------------------------------------------------------


def run(
    operator_name: str,
    inputs: dict[str, np.ndarray],
    output: type,
    constant: tuple[str, ...] = (),
    opset: int = 22,
    more: tuple[str, ...] = (),
    **attributes: Any,
) -> np.ndarray:
    """One node in the bridge; the inputs in `constant` are initializers."""
    kinds = {name: ir.DataType.from_numpy(a.dtype) for name, a in inputs.items()}
    graph = helper.make_graph(
        [helper.make_node(operator_name, list(inputs), ["out", *more], **attributes)],
        "g",
        [
            helper.make_tensor_value_info(n, int(kinds[n]), list(a.shape))
            for n, a in inputs.items()
            if n not in constant
        ],
        [helper.make_tensor_value_info("out", int(ir.DataType.from_numpy(np.dtype(output))), None)],
        [onnx.numpy_helper.from_array(inputs[n], n) for n in constant],
    )
    module = to_torch(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10))
    given = [values.tensor(inputs[name], kinds[name]) for name in module.input_names]
    result = values.array(module(*given), ir.DataType[module.output_types[0]])
    assert result.dtype == np.dtype(output)
    return result


def numbers(dtype: type, seed: int = 0, low: int = 0) -> np.ndarray:
    """Random numbers over the whole range and near its ends and its middle."""
    top = np.iinfo(dtype).max
    ends = [low, low + 1, 2, top, top - 1, top // 2, top // 2 + 1, top // 3]
    found = np.random.default_rng(seed).integers(low, top, 56, dtype=dtype, endpoint=True)
    return np.random.default_rng(seed + 1).permutation(np.concatenate([np.array(ends, dtype), found]).astype(dtype))


BINARY: dict[str, Callable[..., np.ndarray]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "Div": operator.floordiv,
    "Mod": operator.mod,
    "Max": np.maximum,
    "Min": np.minimum,
    "BitwiseAnd": operator.and_,
    "BitwiseOr": operator.or_,
    "BitwiseXor": operator.xor,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
    "Equal": operator.eq,
}


@pytest.mark.parametrize("constant", [(), ("b",)], ids=["inputs", "initializer"])
@pytest.mark.parametrize("dtype", UNSIGNED)
@pytest.mark.parametrize("name", BINARY)
def test_binary_operators(name: str, dtype: type, constant: tuple[str, ...]) -> None:
    a, b = numbers(dtype), numbers(dtype, 7, low=1)
    b[::5] = a[::5]
    b[b == 0] = 1
    with np.errstate(over="ignore"):
        wanted = BINARY[name](a, b)
    np.testing.assert_array_equal(run(name, {"a": a, "b": b}, wanted.dtype.type, constant), wanted)
    scalar = np.asarray(b[3])
    with np.errstate(over="ignore"):
        wanted = BINARY[name](a, scalar)
    np.testing.assert_array_equal(run(name, {"a": a, "b": scalar}, wanted.dtype.type, constant), wanted)


@pytest.mark.parametrize("dtype", [*UNSIGNED, np.uint8, np.int8, np.int16, np.int32, np.int64])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shifts(dtype: type, direction: str) -> None:
    x = numbers(dtype).reshape(8, 8)
    if np.iinfo(dtype).min < 0:
        x[::2] = -x[::2]
    width = np.iinfo(dtype).bits
    by = np.array([0, 1, 2, width // 2, width - 1, width, width + 1, 100], dtype)
    if np.iinfo(dtype).min < 0:
        by[-1] = -1
    found = run("BitShift", {"x": x, "by": by}, dtype, direction=direction)
    wanted = np.empty(x.shape, dtype)
    for row, column in np.ndindex(x.shape):
        value, count = int(x[row, column]), int(by[column])
        if 0 <= count < width:
            shifted = value << count if direction == "LEFT" else value >> count
        else:
            shifted = -1 if value < 0 and direction == "RIGHT" else 0
        wanted[row, column] = np.array(shifted & (2**width - 1), f"u{width // 8}").astype(dtype)
    np.testing.assert_array_equal(found, wanted)


REDUCTIONS: dict[str, Callable[[np.ndarray], Any]] = {
    "ReduceSum": lambda row: sum(map(int, row)),
    "ReduceProd": lambda row: int(np.prod(row.astype(object))),
    "ReduceMax": lambda row: int(row.max()),
    "ReduceMin": lambda row: int(row.min()),
    "ReduceL1": lambda row: sum(map(int, row)),
    "ReduceSumSquare": lambda row: sum(int(e) ** 2 for e in row),
}


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, dtype: type) -> None:
    x = numbers(dtype).reshape(8, 8)
    found = run(name, {"x": x, "axes": np.array([1])}, dtype, ("axes",), keepdims=0)
    mask = 2 ** np.iinfo(dtype).bits - 1
    assert [int(e) for e in found] == [REDUCTIONS[name](row) & mask for row in x]


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_mean_does_not_overflow(dtype: type) -> None:
    x = numbers(dtype).reshape(16, 4) // dtype(4)
    found = run("ReduceMean", {"x": x, "axes": np.array([1])}, dtype, ("axes",), keepdims=0)
    assert [int(e) for e in found] == [sum(map(int, row)) // 4 for row in x]


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_order(dtype: type) -> None:
    x = numbers(dtype)
    assert run("ArgMax", {"x": x}, np.int64, keepdims=0) == x.argmax()
    assert run("ArgMin", {"x": x}, np.int64, keepdims=0) == x.argmin()
    top = run("TopK", {"x": x, "k": np.array([5])}, dtype, ("k",), more=("indices",))
    np.testing.assert_array_equal(top, np.sort(x)[::-1][:5])
    low, high = np.sort(x)[[9, 50]]
    for constant in ((), ("low", "high")):
        found = run("Clip", {"x": x, "low": np.asarray(low), "high": np.asarray(high)}, dtype, constant)
        np.testing.assert_array_equal(found, np.clip(x, low, high))


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_moving_elements(dtype: type) -> None:
    x = numbers(dtype).reshape(8, 8)
    index = np.array([[0, 7], [3, 1]])
    mask = x > np.iinfo(dtype).max // 2
    np.testing.assert_array_equal(run("Gather", {"x": x, "i": index}, dtype), x[index])
    np.testing.assert_array_equal(run("Where", {"c": mask, "x": x, "y": x.T.copy()}, dtype), np.where(mask, x, x.T))
    np.testing.assert_array_equal(run("Trilu", {"x": x}, dtype), np.triu(x))
    np.testing.assert_array_equal(run("NonZero", {"x": x}, np.int64), np.nonzero(x))
    np.testing.assert_array_equal(run("CumSum", {"x": x, "a": np.asarray(1)}, dtype, ("a",)), x.cumsum(1, dtype=dtype))
    pads, fill = np.array([0, 1, 1, 0]), np.asarray(np.iinfo(dtype).max, dtype)
    wanted = np.pad(x, [(0, 1), (1, 0)], constant_values=fill)
    for constant in (("p",), ("p", "v")):
        np.testing.assert_array_equal(run("Pad", {"x": x, "p": pads, "v": fill}, dtype, constant), wanted)
    updates = x[:2, :2].copy()
    for reduction, function in (("none", None), ("add", np.add), ("max", np.maximum), ("min", np.minimum)):
        wanted = x.copy()
        for row, column in np.ndindex(2, 2):
            place = (index[row, column], column)
            with np.errstate(over="ignore"):
                new = updates[row, column]
                wanted[place] = new if function is None else function(wanted[place], new)
        attributes = {} if reduction == "none" else {"reduction": reduction}
        found = run("ScatterElements", {"x": x, "i": index, "u": updates}, dtype, **attributes)
        np.testing.assert_array_equal(found, wanted, err_msg=reduction)


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_products(dtype: type) -> None:
    a, b = numbers(dtype).reshape(8, 8), numbers(dtype, 5).reshape(8, 8)
    mask = 2 ** np.iinfo(dtype).bits - 1
    wanted = (a.astype(object) @ b.astype(object)) & mask
    assert np.array_equal(run("MatMul", {"a": a, "b": b}, dtype).astype(object), wanted)
    c = numbers(dtype, 9)[:8]
    assert np.array_equal(run("Gemm", {"a": a, "b": b, "c": c}, dtype).astype(object), (wanted + c) & mask)


def test_indices_beyond_int64_select_nothing() -> None:
    indices = np.array([1, 2**64 - 1, 2**63], np.uint64)
    chosen = np.array([0, 2**64 - 1], np.uint64)
    found = run("OneHot", {"i": indices, "d": np.asarray(3), "v": chosen}, np.uint64)
    np.testing.assert_array_equal(found, np.where(np.eye(3, dtype=bool)[1] & np.array([[1], [0], [0]]), chosen[1], 0))


@pytest.mark.parametrize("dtype", UNSIGNED)
@pytest.mark.parametrize("target", [np.float32, np.float64, np.int64, np.uint8, np.bool_])
def test_casts_from_unsigned(dtype: type, target: type) -> None:
    x = numbers(dtype)
    kind = int(ir.DataType.from_numpy(np.dtype(target)))
    np.testing.assert_array_equal(run("Cast", {"x": x}, target, to=kind), x.astype(target))


def test_division_of_64_bits_against_python() -> None:
    random = np.random.default_rng(3)
    a = random.integers(0, 2**64 - 1, 20_000, dtype=np.uint64, endpoint=True)
    b = random.integers(1, 2**64 - 1, 20_000, dtype=np.uint64, endpoint=True) >> random.integers(
        0, 64, 20_000, np.uint64
    )
    b[b == 0] = 1
    quotient = unsigned_types.divide(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    np.testing.assert_array_equal(quotient, a // b)
    np.testing.assert_array_equal(unsigned_types.remainder(torch.from_numpy(a), torch.from_numpy(b)).numpy(), a % b)


def test_what_is_not_exact_is_refused_by_name() -> None:
    x = np.ones((2, 2), np.uint64)
    with pytest.raises(UnsupportedError, match=r"Gemm \(element type UINT64\)"):
        run("Gemm", {"a": x, "b": x}, np.uint64, alpha=0.5)


def test_unsigned_arithmetic_of_constants_wraps() -> None:
    """Shape arithmetic on Python numbers computes what the tensors would hold."""
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (int64[1] y) {
        s = Shape(x)
        c = Cast<to=6>(s)
        d = Constant<value = int32[1] {2147483647}>()
        e = Add(c, d)
        f = Constant<value = int32[1] {2}>()
        g = Div(e, f)
        y = Cast<to=7>(g) }"""
    module = to_torch(onnx.parser.parse_model(text))
    assert module(torch.zeros(2)).item() == -(2**31 - 1) // 2 + 1  # -2147483647 / 2, towards zero


# --- bits -----------------------------------------------------------------------------------------------------------

BIT_CASTS = [
    (np.uint64, np.float64),
    (np.int16, ml_dtypes.bfloat16),
    (np.uint16, np.float16),
    (np.uint8, ml_dtypes.float8_e5m2),
    (np.int8, ml_dtypes.float8_e8m0fnu),
    (ml_dtypes.float8_e4m3fn, np.int8),
    (ml_dtypes.int4, ml_dtypes.uint4),
    (ml_dtypes.uint4, ml_dtypes.float4_e2m1fn),
    (ml_dtypes.float4_e2m1fn, ml_dtypes.int4),
    (ml_dtypes.uint2, ml_dtypes.int2),
]


@pytest.mark.parametrize(("source", "target"), BIT_CASTS)
def test_bit_cast(source: type, target: type) -> None:
    start, end = (ir.DataType.from_numpy(np.dtype(t)) for t in (source, target))
    size = np.dtype(source).itemsize
    raw = np.random.default_rng(0).integers(0, 2 ** min(8 * size, 63), 40).astype(f"u{size}")
    if start.bitwidth < 8:
        raw = np.arange(2**start.bitwidth, dtype=np.uint8)
    if start.name.startswith("INT") and start.bitwidth < 8:
        raw = ((raw.astype(np.int8) << (8 - start.bitwidth)) >> (8 - start.bitwidth)).view(np.uint8)
    x = raw.view(source)
    found = run("BitCast", {"x": x}, target, opset=26, to=int(end))
    mask = 2 ** min(start.bitwidth, 8) - 1
    assert np.array_equal(found.view(np.uint8) & mask, x.view(np.uint8) & mask)


@pytest.mark.parametrize("kind", [*FLOAT8, "FLOAT8E8M0", "FLOAT4E2M1", "INT4", "UINT4", "INT2", "UINT2"])
def test_small_types_move_and_reshape(kind: str) -> None:
    dtype = numpy_type(kind)
    codes = np.array([[1, 0], [1, 1]]).astype(dtype)
    wanted = codes.T.reshape(-1)
    graph = helper.make_graph(
        [
            helper.make_node("Transpose", ["x"], ["t"]),
            helper.make_node("Flatten", ["t"], ["f"], axis=0),
            helper.make_node("Squeeze", ["f", "axes"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", int(ir.DataType[kind]), [2, 2])],
        [helper.make_tensor_value_info("y", int(ir.DataType[kind]), [4])],
        [onnx.numpy_helper.from_array(np.array([0]), "axes")],
    )
    module = to_torch(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13))
    assert module.input_types == module.output_types == (kind,)
    result = module(values.tensor(codes, ir.DataType[kind]))
    assert values.array(result, ir.DataType[kind]).tobytes() == wanted.tobytes()


# --- versions 1 to 6 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div", "Pow"])
@pytest.mark.parametrize(("shape", "axis"), [((3,), 1), ((2, 3), 0), ((4,), None), ((3, 4), None), ((3,), -2)])
def test_broadcasting_of_version_6(name: str, shape: tuple[int, ...], axis: int | None) -> None:
    random = np.random.default_rng(0)
    a, b = (random.uniform(0.5, 2.0, s).astype(np.float32) for s in ((2, 3, 4), shape))
    placed = b if axis is None else b.reshape(b.shape + (1,) * (3 - axis % 3 - b.ndim))
    wanted = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power}[name](a, placed)
    attributes = {"broadcast": 1} | ({} if axis is None else {"axis": axis})
    found = run(name, {"a": a, "b": b}, np.float32, opset=6, **attributes)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)  # powers of another library


def test_comparison_of_version_1() -> None:
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1, 4], np.float32)
    found = run("Greater", {"a": a, "b": b}, np.bool_, opset=6, broadcast=1, axis=0)
    np.testing.assert_array_equal(found, a > b[:, None])
