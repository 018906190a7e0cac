"""The reference formulas against onnxruntime, bit for bit, and what their parameters promise."""

import functools
from typing import Any

import hypothesis.extra.numpy as arrays
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from onnxqat import numerics
from onnxqat.types import STORAGE, QParams, QType, Scheme, TensorSpec

CARRIERS = ("int8", "uint8", "int16", "uint16")
GRIDS = (
    *(QType.of(bits, signed=signed) for bits in (2, 3, 4, 8, 16) for signed in (True, False)),
    *(QType.of(bits, signed=True, narrow=True) for bits in (2, 4, 8, 16)),
    QType.of(4, signed=True, storage="int4"),
    QType.of(8, signed=True, storage="int32"),
)
# The same examples in every run: a test that fails on some days only cannot be bisected.
repeatable = settings(derandomize=True, deadline=None, max_examples=150, database=None)


@functools.cache
def session(storage: str, axis: int | None, clip: tuple[int, int] | None = None) -> onnxruntime.InferenceSession:
    """Run x -> QuantizeLinear -> (Clip ->) DequantizeLinear, parameters given as inputs; no optimization."""
    dtype = getattr(TensorProto, storage.upper())
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    nodes = [helper.make_node("QuantizeLinear", ["x", "scale", "zero_point"], ["q"], **attributes)]
    constants = []
    if clip is not None:
        constants = [helper.make_tensor(n, dtype, [], [v]) for n, v in zip(("low", "high"), clip, strict=True)]
        nodes.append(helper.make_node("Clip", ["q", "low", "high"], ["codes"]))
    else:
        nodes.append(helper.make_node("Identity", ["q"], ["codes"]))
    nodes.append(helper.make_node("DequantizeLinear", ["codes", "scale", "zero_point"], ["y"], **attributes))
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, None),
        helper.make_tensor_value_info("scale", TensorProto.FLOAT, None),
        helper.make_tensor_value_info("zero_point", dtype, None),
    ]
    outputs = [
        helper.make_tensor_value_info("codes", dtype, None),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph(nodes, "quantizer", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def assert_as_onnxruntime(x: np.ndarray, qparams: QParams) -> None:
    """Codes and values are those of onnxruntime, bit for bit (so -0.0 differs from 0.0)."""
    qtype = qparams.qtype
    clip = (qtype.quant_min, qtype.quant_max) if qtype.needs_clip else None
    feeds = {"x": x, "scale": qparams.scale, "zero_point": qparams.zero_point.astype(qtype.storage)}
    codes, values = session(qtype.storage, qparams.axis, clip).run(None, feeds)
    np.testing.assert_array_equal(numerics.quantize(x, qparams), codes.astype(np.int64))
    expected = numerics.fake_quantize(x, qparams)
    assert expected.dtype == np.float32
    assert expected.shape == x.shape
    np.testing.assert_array_equal(expected.view(np.uint32), values.view(np.uint32))


def full(storage: str) -> QType:
    """The grid of all codes of an ONNX type."""
    return QType(storage, *STORAGE[storage][:2])


def per_tensor(scale: float, zero_point: int, qtype: QType) -> QParams:
    """Parameters of a whole tensor."""
    return QParams(np.array(scale, np.float32), np.array(zero_point, np.int64), qtype)


def spanning(
    low: float, high: float, qtype: QType, *, symmetric: bool = True, scale_bits: int | None = None
) -> QParams:
    """Parameters of a whole tensor that cover a range."""
    low32, high32 = np.array(low, np.float32), np.array(high, np.float32)
    return numerics.from_range(low32, high32, Scheme(qtype, symmetric, scale_bits=scale_bits))


ZERO = np.zeros((), np.float32)


def random_qparams(rng: np.random.Generator, qtype: QType, axis: int | None = None, channels: int = 1) -> QParams:
    """Any legal parameters: scales over many magnitudes, zero points over the whole grid."""
    size = () if axis is None else (channels,)
    scale = np.exp(rng.uniform(-12, 4, size)).astype(np.float32)
    zero_point = rng.integers(qtype.quant_min, qtype.quant_max + 1, size)
    return QParams(np.asarray(scale), np.asarray(zero_point), qtype, axis)


def on_and_around_ties(rng: np.random.Generator, scale: np.ndarray, shape: tuple[int, ...], steps: int) -> np.ndarray:
    """Values at half steps and their float neighbours, some far outside the grid."""
    half_steps = rng.integers(-4 * steps, 4 * steps + 1, shape).astype(np.float32) / np.float32(2)
    x = half_steps * scale
    side = rng.integers(-1, 2, shape)
    toward = np.where(side < 0, -np.inf, np.inf).astype(np.float32)
    return np.asarray(np.where(side == 0, x, np.nextafter(x, toward)), np.float32)


@pytest.mark.parametrize("storage", CARRIERS)
@pytest.mark.parametrize("seed", range(6))
def test_per_tensor_ties(storage: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    qparams = random_qparams(rng, full(storage))
    steps = qparams.qtype.quant_max - qparams.qtype.quant_min
    assert_as_onnxruntime(on_and_around_ties(rng, qparams.scale, (2000,), steps), qparams)


@pytest.mark.parametrize("storage", CARRIERS)
@pytest.mark.parametrize("axis", range(4))
def test_per_channel_on_any_axis(storage: str, axis: int) -> None:
    rng = np.random.default_rng(axis)
    shape = (3, 5, 4, 7)
    qparams = random_qparams(rng, full(storage), axis, shape[axis])
    scale = numerics.along_axis(qparams.scale, axis, len(shape))
    steps = qparams.qtype.quant_max - qparams.qtype.quant_min
    assert_as_onnxruntime(on_and_around_ties(rng, scale, shape, steps), qparams)


@pytest.mark.parametrize("axis", [-1, -2])
def test_negative_axis(axis: int) -> None:
    rng = np.random.default_rng(0)
    shape = (3, 5)
    qparams = random_qparams(rng, full("int8"), axis, shape[axis])
    assert_as_onnxruntime(rng.normal(size=shape).astype(np.float32), qparams)


@pytest.mark.parametrize("storage", CARRIERS)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0, 3)])
def test_scalars_and_empty_tensors(storage: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    assert_as_onnxruntime(np.asarray(rng.normal(size=shape), np.float32), random_qparams(rng, full(storage)))


@pytest.mark.parametrize("storage", CARRIERS)
def test_infinities_and_overflow_saturate(storage: str) -> None:
    qtype = full(storage)
    largest = np.finfo(np.float32).max
    x = np.array([np.inf, -np.inf, largest, -largest, 0.0, -0.0, 1e-45, -1e-45], np.float32)
    for scale in (np.float32(1), np.float32(1e-30), numerics.SMALLEST_SCALE):
        for zero_point in (qtype.quant_min, qtype.quant_max, 1):
            assert_as_onnxruntime(x, per_tensor(float(scale), zero_point, qtype))


@pytest.mark.parametrize("storage", CARRIERS)
def test_nan_becomes_the_smallest_code(storage: str) -> None:
    qtype = full(storage)
    assert numerics.quantize(np.array([np.nan], np.float32), per_tensor(1, 3, qtype)) == [qtype.quant_min]


@pytest.mark.parametrize("qtype", [g for g in GRIDS if g.needs_clip and g.storage in {"int8", "uint8"}], ids=str)
def test_narrow_grids_are_quantize_clip_dequantize(qtype: QType) -> None:
    rng = np.random.default_rng(2)
    for _ in range(4):
        qparams = random_qparams(rng, qtype)
        assert_as_onnxruntime(on_and_around_ties(rng, qparams.scale, (500,), 40), qparams)


def test_division_is_not_a_multiplication() -> None:
    """Codes of x / scale and x * (1 / scale) differ on related grids, so the formula matters."""
    scale = np.float32(4 / 255)
    x = (np.arange(-2001, 2000, 2, dtype=np.float32) / np.float32(2)) * scale
    qparams = per_tensor(float(scale), 0, full("int16"))
    assert (numerics.quantize(x, qparams) != np.rint(x * (np.float32(1) / scale))).any()
    assert_as_onnxruntime(x, qparams)


@repeatable
@given(data=st.data())
def test_any_values(data: st.DataObject) -> None:
    storage = data.draw(st.sampled_from(CARRIERS))
    qtype = full(storage)
    scale = data.draw(st.floats(2.0**-100, 2.0**100, width=32))
    zero_point = data.draw(st.integers(qtype.quant_min, qtype.quant_max))
    x = data.draw(arrays.arrays(np.float32, st.integers(1, 40), elements=st.floats(width=32, allow_nan=False)))
    assert_as_onnxruntime(x, per_tensor(scale, zero_point, qtype))


@pytest.mark.parametrize("storage", CARRIERS)
def test_codes_survive_the_round_trip(storage: str) -> None:
    """A value on the grid stays where it is, so that writing back without training changes nothing."""
    rng = np.random.default_rng(3)
    qtype = full(storage)
    codes = np.arange(qtype.quant_min, qtype.quant_max + 1)
    for _ in range(10):
        qparams = random_qparams(rng, qtype)
        np.testing.assert_array_equal(numerics.quantize(numerics.dequantize(codes, qparams), qparams), codes)


def test_inputs_are_left_alone() -> None:
    x = np.linspace(-1, 1, 9, dtype=np.float32)
    before = x.copy()
    numerics.fake_quantize(x, per_tensor(0.25, 0, full("int8")))
    np.testing.assert_array_equal(x, before)


# Ranges ---------------------------------------------------------------------------------------------------------

bounds = st.floats(-(2.0**100), 2.0**100, width=32)
options = st.fixed_dictionaries({"symmetric": st.booleans(), "scale_bits": st.sampled_from([None, 1, 3])})


@repeatable
@given(low=bounds, high=bounds, qtype=st.sampled_from(GRIDS), choice=options)
def test_range_gives_a_legal_quantizer_with_exact_zero(
    low: float, high: float, qtype: QType, choice: dict[str, Any]
) -> None:
    low, high = min(low, high), max(low, high)
    qparams = spanning(low, high, qtype, **choice)
    assert qparams.scale.dtype == np.float32
    assert np.isfinite(qparams.scale)
    assert qparams.scale > 0
    assert qtype.quant_min <= qparams.zero_point <= qtype.quant_max
    assert numerics.fake_quantize(ZERO, qparams) == 0
    if choice["symmetric"]:
        assert qparams.zero_point == qtype.middle
    if choice["scale_bits"] == 1:
        assert np.frexp(qparams.scale)[0] == 0.5


@repeatable
@given(low=bounds, high=bounds, qtype=st.sampled_from(GRIDS), choice=options)
@example(low=-1.0, high=0.0, qtype=QType.of(8, signed=True), choice={"symmetric": False, "scale_bits": 1})
def test_nothing_inside_the_range_is_clipped(low: float, high: float, qtype: QType, choice: dict[str, Any]) -> None:
    """Every value of the range is at most half a step (and float rounding) from the grid, and more at a short scale.

    One step more where the scale may be rounded down, and one where the zero point is an even code.
    """
    low, high = min(low, high, 0.0), max(low, high, 0.0)
    qparams = spanning(low, high, qtype, **choice)
    x = np.linspace(low, high, 50).astype(np.float32)
    error = np.abs(numerics.fake_quantize(x, qparams).astype(np.float64) - x)
    rounding = np.finfo(np.float32).eps * max(-low, high)
    steps = qtype.quant_max - (qtype.middle if choice["symmetric"] else qtype.quant_min)
    cut = 1.0 if choice["scale_bits"] and steps >= numerics.SMALLEST_SLACK_STEPS else 0.0
    if choice["scale_bits"] and not choice["symmetric"] and steps >= numerics.SMALLEST_EVEN_STEPS:
        cut += 1.0
    assert error.max() <= (0.5 + cut) * float(qparams.scale) * (1 + 1e-3 * cut + 1e-6) + 2 * rounding


@repeatable
@given(magnitude=st.floats(2.0**-60, 2.0**60, width=32), qtype=st.sampled_from(GRIDS))
def test_power_of_two_is_the_next_larger_scale(magnitude: float, qtype: QType) -> None:
    free = spanning(-magnitude, magnitude, qtype)
    rounded = spanning(-magnitude, magnitude, qtype, scale_bits=1)
    ratio = float(rounded.scale) / float(free.scale)
    steps = qtype.quant_max - qtype.middle
    cut = 1 if steps >= numerics.SMALLEST_SLACK_STEPS else 0
    assert 1 - (cut + 1e-3) / steps <= ratio < 2
    assert (steps + cut * 1.001) * float(rounded.scale) >= magnitude * (1 - 1e-6)


def test_short_scale_of_the_usual_range_loses_one_step_and_not_a_third_of_the_resolution() -> None:
    free = spanning(0, 6, QType.of(8, signed=False), symmetric=False)
    short = spanning(0, 6, QType.of(8, signed=False), symmetric=False, scale_bits=2)
    assert short.scale == 1.5 / 64 < free.scale
    assert 255 * short.scale == 6 - short.scale


@pytest.mark.parametrize("qtype", GRIDS, ids=str)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("scale_bits", [None, 1, 3])
def test_zero_width_range(qtype: QType, symmetric: bool, scale_bits: int | None) -> None:
    qparams = spanning(0, 0, qtype, symmetric=symmetric, scale_bits=scale_bits)
    assert qparams.scale == 1
    assert qparams.zero_point == (qtype.middle if symmetric else 0)
    assert numerics.fake_quantize(ZERO, qparams) == 0


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("qtype", GRIDS, ids=str)
def test_channels_are_independent(qtype: QType, symmetric: bool) -> None:
    low = np.array([-1, 0, 0, -3, 0.5], np.float32)
    high = np.array([2, 0, 5, -1, 4], np.float32)
    together = numerics.from_range(low, high, Scheme(qtype, symmetric, axis=0))
    for channel in range(len(low)):
        alone = spanning(float(low[channel]), float(high[channel]), qtype, symmetric=symmetric)
        assert together.scale[channel] == alone.scale
        assert together.zero_point[channel] == alone.zero_point


def test_symmetric_maps_the_largest_magnitude_to_the_largest_code() -> None:
    qparams = spanning(-3, 2, full("int8"), symmetric=True)
    assert qparams.scale == np.float32(3 / 127)
    assert numerics.quantize(np.array([-3, 3], np.float32), qparams).tolist() == [-127, 127]


def test_asymmetric_uses_every_code() -> None:
    qparams = spanning(-1, 3, full("uint8"), symmetric=False)
    assert qparams.scale == np.float32(4 / 255)
    assert numerics.quantize(np.array([-1, 3], np.float32), qparams).tolist() == [0, 255]


@pytest.mark.parametrize("extreme", [float("inf"), float(np.finfo(np.float32).max), 1e-45])
@pytest.mark.parametrize("symmetric", [True, False])
def test_extreme_ranges_stay_legal(extreme: float, symmetric: bool) -> None:
    qparams = spanning(-extreme, extreme, full("int8"), symmetric=symmetric)
    assert np.isfinite(qparams.scale)
    assert qparams.scale >= numerics.SMALLEST_SCALE


# Grids ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8, 16])
@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("narrow", [True, False])
def test_grid_of_a_width(bits: int, signed: bool, narrow: bool) -> None:
    qtype = QType.of(bits, signed=signed, narrow=narrow)
    assert qtype.bits == bits
    assert qtype.signed == signed
    assert qtype.quant_min <= 0 < qtype.quant_max
    codes = qtype.quant_max - qtype.quant_min + 1
    assert codes == 2**bits - (1 if signed and narrow else 0)
    assert qtype.needs_clip == (bits not in (8, 16) or (signed and narrow))
    assert qtype.storage == ("int" if signed else "uint") + ("16" if bits == 16 else "8")


@pytest.mark.parametrize("storage", STORAGE)
def test_full_storage_needs_no_clip(storage: str) -> None:
    qtype = full(storage)
    assert not qtype.needs_clip
    assert qtype.signed == (not storage.startswith("u"))
    assert qtype.bits == int(storage.removeprefix("u").removeprefix("int"))


@pytest.mark.parametrize("storage", STORAGE)
def test_storage_agrees_with_onnx(storage: str) -> None:
    """The table's opset is the first whose QuantizeLinear (int32: DequantizeLinear) takes the type."""
    first = STORAGE[storage][2]

    def takes(opset: int) -> bool:
        operator = "DequantizeLinear" if storage == "int32" else "QuantizeLinear"
        schema = onnx.defs.get_schema(operator, opset, "")
        variable = (schema.inputs if storage == "int32" else schema.outputs)[0].type_str
        allowed = {constraint.type_param_str: constraint.allowed_type_strs for constraint in schema.type_constraints}
        return f"tensor({storage})" in allowed[variable]

    assert takes(first)
    assert first == 10 or not takes(first - 1)


@pytest.mark.parametrize("bits", [-1, 0, 1, 9, 15, 17, 32])
def test_other_widths_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match="bits"):
        QType.of(bits, signed=True)


@pytest.mark.parametrize(
    ("storage", "low", "high"),
    [("int8", -129, 127), ("uint8", -1, 255), ("int8", 5, 5), ("int8", 6, 5), ("float8", 0, 1), ("int4", -8, 8)],
)
def test_impossible_grids_are_refused(storage: str, low: int, high: int) -> None:
    with pytest.raises(ValueError, match=r"codes|storage"):
        QType(storage, low, high)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan])
def test_illegal_scales_are_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="finite and > 0"):
        per_tensor(scale, 0, full("int8"))


def test_parameters_fit_their_axis() -> None:
    one, many = np.ones((), np.float32), np.ones(3, np.float32)
    with pytest.raises(ValueError, match="axis"):
        QParams(many, np.zeros(3, np.int64), full("int8"))
    with pytest.raises(ValueError, match="axis"):
        QParams(one, np.zeros((), np.int64), full("int8"), axis=0)
    with pytest.raises(ValueError, match="zero point"):
        QParams(many, np.zeros(2, np.int64), full("int8"), axis=0)


def test_same_compares_every_part() -> None:
    base = per_tensor(0.5, 3, full("int8"))
    assert base.same(per_tensor(0.5, 3, full("int8")))
    assert not base.same(per_tensor(0.25, 3, full("int8")))
    assert not base.same(per_tensor(0.5, 2, full("int8")))
    assert not base.same(per_tensor(0.5, 3, QType("int8", -127, 127)))
    assert not base.same(QParams(np.full(1, 0.5, np.float32), np.full(1, 3), full("int8"), axis=0))


def test_granularity_and_axis_go_together() -> None:
    with pytest.raises(ValueError, match="axis"):
        TensorSpec(full("int8"), axis=0)
    with pytest.raises(ValueError, match="axis"):
        TensorSpec(full("int8"), granularity="channel")


@pytest.mark.parametrize(
    ("low", "high"), [(-1.0, 6.6), (-3.3, 3.3), (-2.0, 0.0), (0.0, 6.0), (-0.01, 5.0), (-7.9, 0.1)]
)
@pytest.mark.parametrize("storage", ["uint8", "int8"])
def test_restricted_scales_come_with_even_zero_points(low: float, high: float, storage: str) -> None:
    """A tie then rounds alike before and after the zero point is added."""
    grid = QType.of(8, signed=storage == "int8", storage=storage)
    found = numerics.from_range(np.float32(low), np.float32(high), Scheme(grid, symmetric=False, scale_bits=2))
    assert found.zero_point % 2 == 0
    codes = np.asarray([grid.quant_min, grid.quant_max]) - found.zero_point
    start, end = codes * float(found.scale)
    assert start <= low + 2.01 * float(found.scale)  # a step for the even code, one for a scale rounded down
    assert end >= high - 2.01 * float(found.scale)
    ties = (np.arange(-200, 200) + 0.5) * float(found.scale)
    inside = np.rint(ties / float(found.scale) + float(found.zero_point))
    np.testing.assert_array_equal(
        numerics.quantize(ties.astype(np.float32), found), np.clip(inside, grid.quant_min, grid.quant_max)
    )


def test_free_scales_and_narrow_grids_keep_the_nearest_zero_point() -> None:
    for grid, bits in ((QType.of(8, signed=False), None), (QType.of(4, signed=False), 4)):
        found = numerics.from_range(np.float32(-1.0), np.float32(14.0), Scheme(grid, symmetric=False, scale_bits=bits))
        assert found.zero_point == np.rint(1.0 / float(found.scale))
        assert found.zero_point % 2 == 1
