"""Check of the promises that every observer makes, on generated streams."""

from __future__ import annotations

import copy
import functools
import itertools
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxqat import extension, numerics
from onnxqat.calibration.observers import KIND, create
from onnxqat.calibration.observers._base import BaseObserver, NonFiniteError
from onnxqat.promises import BrokenError, ExtensionCheck, try_each
from onnxqat.types import FloatArray, QType, TensorSpec

CLOSE = 1e-5
"""Relative difference of two ranges that counts as none: float32 sums of one stream in two orders."""

KEPT = 1 / 16
"""Largest share of a batch that an observer may keep of it: one number per batch, as of a window, and no values."""

Range = tuple[FloatArray, FloatArray]


def check(name: str) -> ExtensionCheck:
    """Try an observer: its name, or the path of its file.

    Streams of normal, rectified, heavy-tailed and offset values are observed on a symmetric grid of 8 bits per tensor,
    and on an asymmetric one of 4 bits per channel.

    1. ``range``: finite, the lower end first, within minimum and maximum (and 0), shape () or (C,).
    2. ``qparams``: scales are finite and positive, and 0 is a value of the grid.
    3. ``constants``: the same for tensors of one value, 0 and the smallest and largest float32 among them.
    4. ``types``: float16 and float64 give the range that their values have in float32.
    5. ``no data``: an empty array changes nothing; without data the range is zero.
    6. ``non-finite``: NaN and infinity are refused, and nothing of the array is taken in.
    7. ``batches``: the stream in other batches, in another order, or merged from two observers gives the same range;
       not asked of a class that says ``depends_on_batches``.
    8. ``merge``: an observer without data adds nothing, and the other one stays as it is.
    9. ``copy``: ``deepcopy`` and ``pickle`` give the same range.
    10. ``memory``: the observer does not keep the values that it saw.

    Raises:
        UsageError: there is no such observer; see :func:`onnxqat.calibration.observers.create`.
    """
    extension.load(KIND, name.partition(" ")[0] if not extension.is_file(name) else name)
    specs = list(_specs(name))
    findings = try_each({promise: functools.partial(trial, specs) for promise, trial in _TRIALS.items()})
    return ExtensionCheck(extension.key_of(name), findings)


def _specs(name: str) -> Iterator[TensorSpec]:
    for bits, symmetric, axis in ((8, True, None), (4, False, 1)):
        yield TensorSpec(
            QType.of(bits, signed=symmetric),
            symmetric=symmetric,
            granularity="tensor" if axis is None else "channel",
            axis=axis,
            observer=name,
        )


def _streams() -> Iterator[tuple[str, FloatArray]]:
    """Arrays of shape (8, 3, 40) with axis 1 for channels of unlike size."""
    normal = np.random.default_rng(0).standard_normal((8, 3, 40)).astype(np.float32)
    normal *= np.array([[0.1], [1], [30]], np.float32)
    yield "normal", normal
    yield "rectified", np.maximum(normal, 0)
    yield "heavy-tailed", normal**3
    yield "offset", np.abs(normal) + np.float32(5)


def _observed(spec: TensorSpec, *batches: npt.NDArray[Any]) -> BaseObserver:
    observer = create(spec)
    for batch in batches:
        observer.update(batch)
    return observer


def _of(spec: TensorSpec) -> str:
    signed = "symmetric" if spec.symmetric else "asymmetric"
    return f"{spec.qtype.bits} bits, {signed}, per {spec.granularity}"


def _ends(found: Range) -> str:
    return " .. ".join(np.array2string(end, precision=4, threshold=4) for end in found)


def _expect_range(what: str, spec: TensorSpec, x: FloatArray, found: Range) -> None:
    """Check one range against the values `x` that it was observed on.

    Raises:
        BrokenError: it has another shape, is not finite, the ends are in the wrong order, or it covers more than `x`.
    """
    low, high = found
    shape = () if spec.axis is None else (x.shape[spec.axis],)
    if low.shape != shape or high.shape != shape:
        raise BrokenError(f"{what}: ends of shape {low.shape} and {high.shape} instead of {shape}")
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise BrokenError(f"{what}: a range that is not finite, {_ends(found)}")
    if not (low <= high).all():
        raise BrokenError(f"{what}: the lower end is above the upper one, {_ends(found)}")
    others = tuple(axis for axis in range(x.ndim) if axis != spec.axis)
    # A grid always holds 0 (numerics.from_range), so a range that reaches to it covers nothing that was not seen.
    least, most = np.minimum(x.min(axis=others), 0), np.maximum(x.max(axis=others), 0)
    if not ((least <= low).all() and (high <= most).all()):
        raise BrokenError(f"{what}: {_ends(found)} is outside of the values, {_ends((least, most))}")


def _expect_same(what: str, found: Range, wanted: Range) -> None:
    reach = np.maximum(np.abs(wanted[0]), np.abs(wanted[1]))
    for end, other in zip(found, wanted, strict=True):
        if end.shape != other.shape or not (np.abs(end - other) <= CLOSE * reach).all():
            raise BrokenError(f"{what}: {_ends(found)} instead of {_ends(wanted)}")


def _ranges(specs: Sequence[TensorSpec]) -> None:
    for spec in specs:
        for stream, x in _streams():
            _expect_range(f"{stream}, {_of(spec)}", spec, x, _observed(spec, x[:4], x[4:]).range())


def _expect_qparams(what: str, observer: BaseObserver) -> None:
    qparams = observer.qparams()
    if not (np.isfinite(qparams.scale).all() and (qparams.scale > 0).all()):
        raise BrokenError(f"{what}: a scale that is not finite and positive, {qparams.scale}")
    zero = np.zeros((1, *qparams.scale.shape, 1), np.float32)
    if numerics.fake_quantize(zero, qparams).any():
        raise BrokenError(f"{what}: 0 is no value of the grid")


def _qparams(specs: Sequence[TensorSpec]) -> None:
    for spec in specs:
        for stream, x in _streams():
            _expect_qparams(f"{stream}, {_of(spec)}", _observed(spec, x))


def _constants(specs: Sequence[TensorSpec]) -> None:
    largest, smallest = np.finfo(np.float32).max, np.finfo(np.float32).smallest_subnormal
    for spec in specs:
        for value in (0.0, 3.0, -3.0, smallest, largest, -largest):
            x = np.full((2, 3, 4), value, np.float32)
            what = f"all {value:.4g}, {_of(spec)}"
            observer = _observed(spec, x, x)
            _expect_range(what, spec, x, observer.range())
            _expect_qparams(what, observer)


def _types(specs: Sequence[TensorSpec]) -> None:
    for spec in specs:
        x = next(_streams())[1].astype(np.float16)
        wanted = _observed(spec, x.astype(np.float32)).range()
        for dtype in (np.float16, np.float64):
            _expect_same(f"{np.dtype(dtype)}, {_of(spec)}", _observed(spec, x.astype(dtype)).range(), wanted)


def _no_data(specs: Sequence[TensorSpec]) -> None:
    for spec in specs:
        low, high = create(spec).range()
        if low.any() or high.any() or low.size != high.size:
            raise BrokenError(f"{_of(spec)}: without data the range is {_ends((low, high))}")
        x = next(_streams())[1]
        _expect_same(
            f"an empty array, {_of(spec)}", _observed(spec, x[:0], x, x[:0]).range(), _observed(spec, x).range()
        )


def _non_finite(specs: Sequence[TensorSpec]) -> None:
    for spec in specs:
        x = next(_streams())[1]
        observer = _observed(spec, x)
        for value in (np.nan, np.inf, -np.inf):
            bad = 100 * x
            bad[0, 0, 0] = value
            try:
                observer.update(bad)
            except NonFiniteError:
                pass
            else:
                raise BrokenError(f"{value} is taken in, {_of(spec)}")
        _expect_same(f"after a refusal, {_of(spec)}", observer.range(), _observed(spec, x).range())


def _batches(specs: Sequence[TensorSpec]) -> str | None:
    for spec in specs:
        if create(spec).depends_on_batches:
            return "not asked: depends_on_batches"
        for stream, x in itertools.islice(_streams(), 2):
            wanted = _observed(spec, x).range()
            merged = _observed(spec, x[:3])
            merged.merge(_observed(spec, x[3:]))
            for way, observer in {
                "in three batches": _observed(spec, x[:1], x[1:3], x[3:]),
                "in another order": _observed(spec, x[3:], x[1:3], x[:1]),
                "merged": merged,
            }.items():
                _expect_same(f"{stream} {way}, {_of(spec)}", observer.range(), wanted)
    return None


def _merge(specs: Sequence[TensorSpec]) -> None:
    for spec in specs:
        first, other = (x for _, x in itertools.islice(_streams(), 2))
        wanted = _observed(spec, first).range()
        into, empty = _observed(spec, first), create(spec)
        into.merge(create(spec))
        empty.merge(into)
        for what, observer in (("merged with none", into), ("none merged with it", empty)):
            _expect_same(f"{what}, {_of(spec)}", observer.range(), wanted)
        _observed(spec, other).merge(into)
        _expect_same(f"after it was merged into another, {_of(spec)}", into.range(), wanted)
        into.merge(_observed(spec, other))
        _expect_range(f"merged, {_of(spec)}", spec, np.concatenate([first, other]), into.range())


def _copies(specs: Sequence[TensorSpec]) -> None:
    for spec in specs:
        x = next(_streams())[1]
        observer = _observed(spec, x)
        for way, other in {"deepcopy": copy.deepcopy(observer), "pickle": pickle.loads(pickle.dumps(observer))}.items():
            _expect_same(f"{way}, {_of(spec)}", other.range(), observer.range())
            other.update(2 * x)
        _expect_same(f"after its copy saw more, {_of(spec)}", observer.range(), _observed(spec, x).range())


def _memory(specs: Sequence[TensorSpec]) -> None:
    for spec in specs:
        x = next(_streams())[1]
        few = len(pickle.dumps(_observed(spec, *[x] * 2)))
        growth = (len(pickle.dumps(_observed(spec, *[x] * 12))) - few) / 10
        if growth > KEPT * x.nbytes:
            raise BrokenError(f"{growth:.0f} bytes are kept of each batch of {x.nbytes}, {_of(spec)}")


_TRIALS: dict[str, Callable[[Sequence[TensorSpec]], str | None]] = {
    "range": _ranges,
    "qparams": _qparams,
    "constants": _constants,
    "types": _types,
    "no data": _no_data,
    "non-finite": _non_finite,
    "batches": _batches,
    "merge": _merge,
    "copy": _copies,
    "memory": _memory,
}
