"""Range observers: what they cover, and that the stream's cut does not matter."""

import dataclasses
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxqat import discover, numerics
from onnxqat.analysis.groups.activation_functions import FORMULAS
from onnxqat.analysis.read_curves import HardSigmoid
from onnxqat.calibration import observers
from onnxqat.calibration.observers import _searched, create
from onnxqat.calibration.observers._base import BaseObserver, NonFiniteError
from onnxqat.calibration.observers._histogram import HistogramObserver
from onnxqat.calibration.observers.auto import BEHIND
from onnxqat.calibration.observers.auto import NAMES as CANDIDATES
from onnxqat.calibration.observers.auto import Observer as Auto
from onnxqat.calibration.observers.mse import Observer as Mse
from onnxqat.calibration.observers.percentile import Observer as Percentile
from onnxqat.types import QType, Scheme, TensorSpec

NAMES = discover.names(observers.__name__)
OF_VALUES = [name for name in NAMES if not discover.load(observers.__name__, name).Observer.depends_on_batches]
"""Those that see values alone, not averages or majorities over batches, of which cut and order count."""
Array = npt.NDArray[Any]


def spec(name: str = "minmax", bits: int = 8, *, symmetric: bool = True, axis: int | None = None) -> TensorSpec:
    return TensorSpec(
        QType.of(bits, signed=symmetric),
        symmetric=symmetric,
        granularity="tensor" if axis is None else "channel",
        axis=axis,
        observer=name,
    )


def observe(tensor_spec: TensorSpec, *batches: Array) -> BaseObserver:
    observer = create(tensor_spec)
    for batch in batches:
        observer.update(batch)
    return observer


def error(x: Array, observer: BaseObserver) -> float:
    return float(np.mean((numerics.fake_quantize(x, observer.qparams()) - x) ** 2))


def gauss(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_who_depends_on_batches() -> None:
    """What says that its batches count is not tested for their order: each that says so has to be one."""
    x = gauss(4, 50) * np.array([[1], [9], [2], [3]], np.float32)
    for name in sorted({*NAMES} - {*OF_VALUES}):
        ranges = [observe(spec(name), *order).range() for order in (x, x[::-1], [x])]
        assert any(not np.array_equal(ranges[0], other) for other in ranges[1:]), name
    assert {"minmax", "mse", "percentile", "entropy"} <= {*OF_VALUES}


@pytest.mark.parametrize("name", OF_VALUES)
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_split_merge_and_order_change_nothing(name: str, axis: int | None) -> None:
    x = gauss(6, 3, 5, 6) * np.geomspace(0.01, 30, 6, dtype=np.float32).reshape(6, 1, 1, 1)
    x[0] = 0
    cut = 2 if axis == 0 else 0
    tensor_spec = spec(name, symmetric=False, axis=axis)
    whole = observe(tensor_spec, x)
    expected = whole.range()
    parts = [x[:, :, :cut], x[:, :, cut:]] if axis == 0 else [x[:1], x[1:2], x[2:]]
    for stream in (parts, parts[::-1]):
        streamed = observe(tensor_spec, *stream)
        merged = observe(tensor_spec, stream[0])
        merged.merge(observe(tensor_spec, *stream[1:]))
        empty = create(tensor_spec)
        empty.merge(merged)
        for other in (streamed, merged, empty, pickle.loads(pickle.dumps(whole))):
            np.testing.assert_array_max_ulp(np.asarray(expected), np.asarray(other.range()), 1)
            if isinstance(whole, HistogramObserver):
                assert isinstance(other, HistogramObserver)
                np.testing.assert_array_equal(whole.counts, other.counts)


def test_histogram_counts_every_value() -> None:
    x = gauss(3, 1000)
    x[1, :10] = 0
    observer = observe(spec("mse", axis=0), x[:, :400], x[:, 400:])
    assert isinstance(observer, Mse)
    np.testing.assert_array_equal(observer.counts.sum(axis=1) + observer.zeros, [1000] * 3)
    assert observer.zeros.tolist() == [0, 10, 0]


@pytest.mark.parametrize("name", OF_VALUES)
@pytest.mark.parametrize(
    "first",
    [np.zeros((1, 3, 4)), np.full((1, 3, 4), 1e-30), np.full((1, 3, 4), -2.5), np.ones((1, 3, 1)), np.ones((0, 3, 4))],
    ids=["zero", "tiny", "constant", "one element", "empty"],
)
@pytest.mark.parametrize("axis", [None, 1])
def test_poor_first_batch(name: str, first: Array, axis: int | None) -> None:
    rest = gauss(20, 3, 50)
    found = observe(spec(name, axis=axis), first.astype(np.float32), rest)
    if first.size:
        found.qparams()
        expected = observe(spec(name, axis=axis), rest, first.astype(np.float32))
    else:
        expected = observe(spec(name, axis=axis), rest)
    np.testing.assert_array_max_ulp(np.asarray(found.range()), np.asarray(expected.range()), 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0.0, 3.0, -3.0, 1e-40, 3e38])
@pytest.mark.parametrize("symmetric", [True, False])
def test_constant_tensor(name: str, value: float, symmetric: bool) -> None:
    observer = observe(spec(name, symmetric=symmetric), np.float32(value))
    assert [float(end) for end in observer.range()] == [float(np.float32(value))] * 2
    assert np.isfinite(observer.qparams().scale)


@pytest.mark.parametrize("name", NAMES)
def test_no_data(name: str) -> None:
    low, high = create(spec(name)).range()
    assert low.shape == high.shape == ()
    assert (low, high) == (0, 0)
    assert create(spec(name)).qparams().scale == 1
    assert create(spec(name, axis=1)).range()[0].shape == (0,)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(NAMES),
    bits=st.sampled_from([2, 3, 4, 5, 6, 7, 8, 16]),
    symmetric=st.booleans(),
    axis=st.sampled_from([None, 0, 1]),
    offset=st.sampled_from([0.0, 1.0, -40.0, 100.0]),
    scale=st.sampled_from([1e-6, 1.0, 1e4]),
    tail=st.sampled_from([1, 3]),
    size=st.integers(1, 60),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_range_is_inside_minmax(
    name: str,
    bits: int,
    symmetric: bool,
    axis: int | None,
    offset: float,
    scale: float,
    tail: int,
    size: int,
    dtype: type,
) -> None:
    x = ((gauss(2, size, seed=size).astype(dtype) ** tail) + offset) * scale
    low, high = observe(spec(name, bits, symmetric=symmetric, axis=axis), x).range()
    all_low, all_high = observe(spec("minmax", bits, symmetric=symmetric, axis=axis), x).range()
    assert low.dtype == high.dtype == np.float32
    assert low.shape == high.shape == all_low.shape
    assert (all_low <= low).all()
    assert (high <= all_high).all()
    assert (low <= high).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_minmax_is_exact(dtype: type) -> None:
    x = gauss(4, 5).astype(dtype)
    low, high = observe(spec(axis=1), x).range()
    np.testing.assert_array_equal(low, x.min(axis=0).astype(np.float32))
    np.testing.assert_array_equal(high, x.max(axis=0).astype(np.float32))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_is_refused_and_not_taken_in(name: str, bad: float) -> None:
    observer = observe(spec(name), gauss(10))
    before = observer.range()
    with pytest.raises(NonFiniteError):
        observer.update(np.array([0, bad, 1], np.float32))
    assert observer.range() == before
    with pytest.raises(NonFiniteError):
        observer.update(np.array([1e300]))


def test_refusals() -> None:
    with pytest.raises(ValueError, match="not int64"):
        observe(spec(), np.arange(3))
    with pytest.raises(ValueError, match="no channel axis 2"):
        observe(spec(axis=2), gauss(3, 4))
    with pytest.raises(ValueError, match="4 channels where there were 3"):
        observe(spec(axis=1), gauss(2, 3), gauss(2, 4))
    with pytest.raises(ValueError, match="same kind"):
        create(spec("mse")).merge(create(spec("minmax")))
    with pytest.raises(ValueError, match="same percentile"):
        Percentile(spec("percentile")).merge(Percentile(spec("percentile"), 99))
    with pytest.raises(ValueError, match="over 50"):
        Percentile(spec("percentile"), 0.99)


def test_percentile_matches_numpy_within_a_bin() -> None:
    x = gauss(2, 50_000) * np.array([[1], [7]], np.float32)
    bin_width = np.abs(x).max(axis=1) / 2048
    low, high = observe(spec("percentile", symmetric=False, axis=0), x).range()
    for found, percent in ((low, 0.005), (high, 99.995)):
        # In the tail, neighbouring values are further apart than bins: between them, any answer is right.
        assert (found >= np.percentile(x, percent, axis=1, method="lower") - bin_width).all()
        assert (found <= np.percentile(x, percent, axis=1, method="higher") + bin_width).all()
    one_sided = Percentile(spec("percentile", symmetric=False, axis=0), 99, two_sided=False)
    one_sided.update(x)
    assert (np.abs(one_sided.range()[1] - np.percentile(np.abs(x), 99, axis=1)) <= bin_width).all()


def test_percentile_counts_zeros() -> None:
    x = np.concatenate([np.zeros(900), np.linspace(0.01, 1, 100)]).astype(np.float32)
    observer = Percentile(spec("percentile", symmetric=False), 95, two_sided=False)
    observer.update(x)
    assert observer.range()[1] == pytest.approx(0.5, abs=0.01)
    observer = Percentile(spec("percentile", symmetric=False), 80, two_sided=False)
    observer.update(x)
    assert observer.range()[1] == 1, "nothing would be left of the range"


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("rectified", [True, False])
def test_entropy_cuts_an_outlier(bits: int, symmetric: bool, rectified: bool) -> None:
    x = gauss(100_000)
    x = np.maximum(x, 0) if rectified else x
    x[0] = 50
    low, high = observe(spec("entropy", bits, symmetric=symmetric), x).range()
    assert 1.5 < high < 6
    assert low == 0 if rectified else -6 < low < -1.5


def test_entropy_keeps_a_range_that_is_well_used() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, 100_000).astype(np.float32)
    for symmetric in (True, False):
        low, high = observe(spec("entropy", symmetric=symmetric), x).range()
        assert low < -0.95
        assert high > 0.95


def test_entropy_has_nothing_to_cut_at_16_bits() -> None:
    x = gauss(1000)
    np.testing.assert_array_equal(observe(spec("entropy", 16), x).range(), observe(spec("minmax", 16), x).range())


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("symmetric", [True, False])
def test_mse_beats_minmax_at_few_bits(bits: int, symmetric: bool) -> None:
    x = gauss(100_000)
    x[0] = 50
    best = min(
        np.mean((numerics.fake_quantize(x, numerics.from_range(-t, t, Scheme(QType.of(bits, signed=True)))) - x) ** 2)
        for t in np.linspace(0.2, 20, 400, dtype=np.float32)
    )
    found = error(x, observe(spec("mse", bits, symmetric=symmetric), x))
    assert found < 0.4 * error(x, observe(spec("minmax", bits, symmetric=symmetric), x))
    assert found < 1.02 * best, "a search over both ends must not end in a worse range than one over thresholds"


def test_mse_expects_the_true_error() -> None:
    x = gauss(200_000)
    for bits in (3, 8, 16):
        clipped = observe(spec("mse", bits, symmetric=False), x)
        assert error(x, clipped) <= error(x, observe(spec("minmax", bits, symmetric=False), x)) * 1.001


def test_mse_leaves_values_on_the_grid_alone() -> None:
    x = np.arange(-127, 128).astype(np.float32)
    np.testing.assert_array_equal(observe(spec("mse"), x).range(), (-127, 127))


def test_mse_chooses_power_of_two_scales_by_error() -> None:
    power = TensorSpec(QType.of(4, signed=True), scale_bits=1, observer="mse")
    x = gauss(50_000)
    scale = observe(power, x).qparams().scale
    errors = {
        e: np.mean(
            (
                numerics.fake_quantize(
                    x, numerics.from_range(np.float32(-7 * 2.0**e), np.float32(7 * 2.0**e), Scheme(power.qtype))
                )
                - x
            )
            ** 2
        )
        for e in range(-5, 1)
    }
    assert np.log2(scale) == min(errors, key=lambda e: errors[e])


def test_a_choice_keeps_its_grid_where_a_wider_candidate_has_the_same() -> None:
    """Of grids that are powers of two, several candidates share one; what was chosen is still what is compared."""
    made = observe(dataclasses.replace(spec("auto"), scale_bits=1), np.append(gauss(20000), np.float32(6)))
    assert isinstance(made, Auto)
    found = made.candidates()
    assert list(found) == ["minmax", "mse"]
    assert found[made.choice].same(made.qparams())
    assert found["minmax"].scale == 2 * found["mse"].scale


@pytest.mark.parametrize("symmetric", [False, True])
def test_ranges_behind_a_function_cut_what_it_makes_alike(symmetric: bool) -> None:
    """Values of a SiLU below -5 are nearly zero: they get no codes, and the others a finer step."""
    x = (4 * gauss(50_000) - 2).astype(np.float32)
    made = observe(spec("auto", symmetric=symmetric), x)
    assert isinstance(made, Auto)
    silu = FORMULAS["Silu", ""]
    wanted = silu(x.astype(np.float64))

    def error(name: str) -> float:
        lying = numerics.fake_quantize(x, made.read_as(name).qparams())
        return float(np.mean((silu(lying.astype(np.float64)) - wanted) ** 2))

    assert made.read_as(BEHIND).qparams().same(made.read_as("mse").qparams())
    made.read_through(silu)
    errors = {name: error(name) for name in CANDIDATES}
    assert errors[BEHIND] <= min(errors.values()) * 1.01
    assert made.qparams().same(made.candidates()[BEHIND])
    if not symmetric:
        assert errors[BEHIND] < 0.5 * min(value for name, value in errors.items() if name != BEHIND)


def test_a_range_in_front_of_a_hard_sigmoid_leaves_no_ties_behind_it() -> None:
    """Values that end where its window does: 255 steps on it would all end half-way between two codes."""
    curve = HardSigmoid(0.2, 0.5)
    made = observe(spec("auto", symmetric=False), np.clip(2 * gauss(50_000), -2.5, 2.5))
    assert isinstance(made, Auto)
    made.read_through(curve)
    grid = made.qparams()
    codes = curve((np.arange(256) - grid.zero_point) * grid.scale.astype(np.float64)) * 255
    assert (
        np.mean((codes - np.rint(codes)) ** 2) < 0.15
    )  # a quarter where all are ties, a twelfth where they lie anyhow


@pytest.mark.parametrize("name", ["mse", "auto"])
def test_a_range_is_searched_once_until_values_come(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is resolved many times, and each search costs some milliseconds."""
    searches: list[object] = []
    search = Mse._error

    def counted(self: Mse) -> Any:
        searches.append(self)
        return search(self)

    monkeypatch.setattr(Mse, "_error", counted)
    monkeypatch.setattr(_searched, "KEPT", OrderedDict())
    made = observe(spec(name), gauss(500))
    first, again = made.qparams(), made.qparams()
    assert first.same(again)
    assert len(searches) == 1
    made.update(3 * gauss(500))
    assert made.qparams().scale > first.scale
    assert len(searches) == 2


@pytest.mark.parametrize("name", ["minmax", "percentile", "mse", "entropy"])
def test_one_histogram_is_read_as_each_observer(name: str) -> None:
    x = np.append(gauss(5000), np.float32(9))
    made = observe(spec("auto", symmetric=False), x[:70], x[70:])
    assert isinstance(made, Auto)
    read, own = made.read_as(name), observe(spec(name, symmetric=False), x)
    assert type(read) is type(own)
    assert read.spec == own.spec
    assert read.qparams().same(own.qparams())
    merged = read.for_spec(read.spec, own=True)
    merged.merge(own)
    assert merged.count == 2 * made.count == 2 * own.count


def test_joined_observers_search_their_range_once() -> None:
    """Streams in one, until further values come or another rule is chosen; none of the parts changes."""
    own = spec("auto", symmetric=False)
    first, other = (observe(own, gauss(900, seed=seed)) for seed in (0, 1))
    other.update(np.full(3, 9, np.float32))
    both = first.joined([other])
    whole = observe(own, gauss(900), gauss(900, seed=1), np.full(3, 9, np.float32))
    assert both.range() == whole.range()
    assert first.joined([other]) is both
    assert first.count == 900
    other.update(np.full(3, 20, np.float32))
    assert first.joined([other]).high == 20
    assert isinstance(first, Auto)
    first.choice = "minmax"
    assert first.joined([other]).range()[1] == 20
