"""The observers of PaddleSlim, MQBench and PPQ against their definitions, written out in numpy."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from onnxqat import numerics
from onnxqat.calibration.observers import clip_std, create, ema_minmax, ema_quantile, range_absmax
from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.calibration.weights import weight_qparams
from onnxqat.graph import qdq
from onnxqat.insertion.insert import insert_qdq
from onnxqat.placement.table_overrides import Overrides
from onnxqat.types import QType, Scheme, TensorSpec

Array = npt.NDArray[Any]

RANDOM = np.random.default_rng(0)
BATCHES = [
    (RANDOM.standard_normal((8, 3, 40)) * size + shift).astype(np.float32) for size, shift in ((1, 0), (3, 1), (2, -1))
]


def spec(name: str, bits: int = 8, *, symmetric: bool = True, axis: int | None = None) -> TensorSpec:
    granularity = "tensor" if axis is None else "channel"
    qtype = QType.of(bits, signed=symmetric)
    return TensorSpec(qtype, symmetric, granularity, axis=axis, observer=name)  # type: ignore[arg-type]


def observe(observer: BaseObserver, batches: list[Array] | None = None) -> tuple[Array, Array]:
    for batch in BATCHES if batches is None else batches:
        observer.update(batch)
    return observer.range()


def rows(batch: Array, axis: int | None) -> Array:
    return batch.reshape(1, -1) if axis is None else np.moveaxis(batch, axis, 0).reshape(batch.shape[axis], -1)


def average(of_batch: list[Array], rate: float = 0.9) -> Array:
    weights = [rate ** (len(of_batch) - 1 - i) for i in range(len(of_batch))]
    return np.asarray(sum(w * x for w, x in zip(weights, of_batch, strict=True)) / sum(weights))


@pytest.mark.parametrize("axis", [None, 1])
def test_absmax(axis: int | None) -> None:
    found = create(spec("absmax", axis=axis))
    observe(found)
    largest = np.abs(np.concatenate([rows(b, axis) for b in BATCHES], 1)).max(1)
    np.testing.assert_allclose(found.qparams().scale.reshape(-1), largest / 127, rtol=1e-6)


@pytest.mark.parametrize("axis", [None, 1])
def test_moving_averages(axis: int | None) -> None:
    low, high = observe(create(spec("ema_minmax", axis=axis)))
    of_batch = [rows(b, axis) for b in BATCHES]
    np.testing.assert_allclose(low.reshape(-1), average([b.min(1) for b in of_batch]), rtol=1e-6)
    np.testing.assert_allclose(high.reshape(-1), average([b.max(1) for b in of_batch]), rtol=1e-6)
    high = observe(create(spec("ema_absmax", axis=axis)))[1]
    largest = average([np.abs(b).max(1) for b in of_batch])
    seen = np.max([b.max(1) for b in of_batch], 0)
    np.testing.assert_allclose(high.reshape(-1), np.minimum(largest, seen), rtol=1e-6)
    cut = [np.quantile(np.abs(b), 0.9, axis=1) for b in of_batch]
    low, high = observe(ema_quantile.Observer(spec("ema_quantile", axis=axis), quantile=0.9))
    lows = [np.maximum(b.min(1), -c) for b, c in zip(of_batch, cut, strict=True)]
    np.testing.assert_allclose(low.reshape(-1), average(lows), rtol=1e-5)
    highs = [np.minimum(b.max(1), c) for b, c in zip(of_batch, cut, strict=True)]
    np.testing.assert_allclose(high.reshape(-1), average(highs), rtol=1e-5)


def test_ema_mse_averages_what_mse_finds() -> None:
    found = observe(create(spec("ema_mse", 4, symmetric=False)))
    alone = [observe(create(spec("mse", 4, symmetric=False)), [b]) for b in BATCHES]
    for end in (0, 1):
        np.testing.assert_allclose(found[end], average([ends[end] for ends in alone]), rtol=1e-5)


def test_one_batch_gives_its_own_range() -> None:
    for name in ("ema_minmax", "ema_absmax"):
        low, high = observe(create(spec(name)), BATCHES[:1])
        assert high == BATCHES[0].max()
        assert low == BATCHES[0].min()


def test_merged_averages_cover_both() -> None:
    first, second = (create(spec("ema_minmax")) for _ in range(2))
    observe(first, [np.asarray([-1, 5], np.float32)])
    observe(second, [np.asarray([-2, 3], np.float32)] * 4)
    first.merge(second)
    assert [float(end) for end in first.range()] == [-2, 5]


def test_range_absmax_forgets() -> None:
    observer = range_absmax.Observer(spec("range_absmax"), window=2)
    sizes = [9, 1, 2, 3, 1]
    ends = [float(observe(observer, [np.asarray([-v, v], np.float32)])[1]) for v in sizes]
    assert ends == [9, 9, 2, 3, 3]
    assert create(spec("range_absmax"))._largest.maxlen == 10000  # type: ignore[attr-defined]


@pytest.mark.parametrize("axis", [None, 1])
def test_clip_std_and_lsq_plus(axis: int | None) -> None:
    together = np.concatenate([rows(b, axis) for b in BATCHES], 1).astype(np.float64)
    mean, std = together.mean(1), together.std(1)
    low, high = observe(create(spec("clip_std", axis=axis)))
    np.testing.assert_allclose(low.reshape(-1), np.maximum(mean - 2.6 * std, together.min(1)), rtol=1e-6)
    np.testing.assert_allclose(high.reshape(-1), np.minimum(mean + 2.6 * std, together.max(1)), rtol=1e-6)
    high = observe(create(spec("lsq_plus", axis=axis)))[1]
    wanted = np.maximum(np.abs(mean - 3 * std), np.abs(mean + 3 * std))
    np.testing.assert_allclose(high.reshape(-1), np.minimum(wanted, together.max(1)), rtol=1e-6)


@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize(("symmetric", "above"), [(True, 1), (False, 3)])
def test_lsq(symmetric: bool, above: int, axis: int | None) -> None:
    batches = [np.abs(b) for b in BATCHES]
    observer = create(spec("lsq", 2, symmetric=symmetric, axis=axis))
    observe(observer, batches)
    mean = np.concatenate([rows(b, axis) for b in batches], 1).mean(1, dtype=np.float64)
    np.testing.assert_allclose(observer.qparams().scale.reshape(-1), 2 * mean / math.sqrt(above), rtol=1e-5)


def squared_error(batches: list[Array], scale: float, bits: int) -> float:
    qtype = QType.of(bits, signed=True)
    grid = numerics.from_range(np.float32(-scale * qtype.quant_max), np.float32(scale * qtype.quant_max), Scheme(qtype))
    return float(sum(np.square(numerics.fake_quantize(b, grid) - b).sum() for b in batches))


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_minmax_floor(bits: int) -> None:
    observer = create(spec("minmax_floor", bits))
    observe(observer)
    largest = max(float(np.abs(b).max()) for b in BATCHES)
    first = math.ceil(math.log2(largest / (2 ** (bits - 1) - 1)))
    errors = {2.0 ** (first - i): squared_error(BATCHES, 2.0 ** (first - i), bits) for i in range(5)}
    assert float(observer.qparams().scale) == min(errors, key=lambda s: errors[s])


def test_mode_minmax_floor_takes_the_majority() -> None:
    observer = create(spec("mode_minmax_floor", 4))
    observe(observer, [BATCHES[0], BATCHES[0] * 64, BATCHES[0], np.zeros(9, np.float32), np.zeros(9, np.float32)])
    alone = create(spec("minmax_floor", 4))
    observe(alone, BATCHES[:1])
    assert observer.qparams().scale == alone.qparams().scale


@pytest.mark.parametrize("name", ["minmax_floor", "mode_minmax_floor"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("axis", [None, 1])
def test_scales_are_powers_of_two_in_every_use(name: str, symmetric: bool, axis: int | None) -> None:
    of_weight = weight_qparams(BATCHES[1], spec(name, 4, symmetric=symmetric, axis=axis)).scale
    observer = create(spec(name, 4, symmetric=symmetric, axis=axis))
    observe(observer)
    for scale in (of_weight, observer.qparams().scale):
        assert (np.frexp(scale)[0] == 0.5).all()


def test_isotone_keeps_the_largest() -> None:
    x = RANDOM.standard_normal((500, 10)).astype(np.float32)
    x[0, 0] = 40  # an outlier that minmax gives all its codes to
    observer = create(spec("isotone", 4))
    observe(observer, [x[:200], x[200:]])
    scale = float(observer.qparams().scale)

    def kept(s: float) -> int:
        second, first = np.sort(x, 1)[:, -2:].astype(np.float64).T
        return int(((s < 2 * (first - second)) & (second < 6.5 * s)).sum())

    best = max(kept(s) for s in np.geomspace(1e-3, 40 / 7, 4000))
    assert kept(scale) >= best - 2
    plain = create(spec("minmax", 4))
    observe(plain, [x])
    codes = [numerics.quantize(x, o.qparams()) for o in (observer, plain)]
    wrong = [int((np.take_along_axis(c, x.argmax(1)[:, None], 1)[:, 0] < c.max(1)).sum()) for c in codes]
    alone = [int((np.sort(c, 1)[:, -1] > np.sort(c, 1)[:, -2]).sum()) for c in codes]
    assert wrong == [0, 0], "quantization keeps the order or makes a tie"
    assert alone[0] > 3 * alone[1]


@pytest.mark.parametrize("shape", [(), (5, 1), (7,)])
def test_isotone_without_an_order(shape: tuple[int, ...]) -> None:
    x = np.full(shape, 2.5, np.float32)
    assert [float(end) for end in observe(create(spec("isotone")), [x])] == [2.5, 2.5]


def test_refusals() -> None:
    for make in (
        lambda: ema_minmax.Observer(spec("ema_minmax"), 1.0),
        lambda: ema_quantile.Observer(spec("ema_quantile"), quantile=0.3),
        lambda: range_absmax.Observer(spec("range_absmax"), 0),
        lambda: clip_std.Observer(spec("clip_std"), 0.0),
    ):
        with pytest.raises(ValueError, match="must"):
            make()


@pytest.mark.parametrize("name", ["ema-minmax", "minmax-floor", "isotone", "range-absmax", "lsq"])
def test_insert_qdq_takes_them(name: str) -> None:
    import onnx

    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 4] x) => (float[N, 2] y)
        <float[4, 2] w = {1, -2, 0.5, 0.25, 3, -1, 0.7, 0.1}>
        { y = MatMul (x, w) }""")
    data = [{"x": RANDOM.standard_normal((8, 4)).astype(np.float32)} for _ in range(3)]
    made = insert_qdq(model, "onnxruntime-cpu", data=data, overrides=Overrides(observer=name, weight_bits=4)).model
    assert qdq.is_quantized(_ir(made))


def _ir(model: Any) -> Any:
    from onnxqat.graph import io

    return io.load(model)
