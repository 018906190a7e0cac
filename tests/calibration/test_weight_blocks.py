"""Weights in blocks: one scale for so many elements along an axis."""

import numpy as np
import pytest

from onnxqat import numerics
from onnxqat.calibration.weights import weight_qparams
from onnxqat.types import QType, TensorSpec

I4 = QType("int4", -8, 7)


def block(size: int, axis: int, observer: str = "minmax") -> TensorSpec:
    return TensorSpec(I4, granularity="block", axis=axis, block_size=size, observer=observer, role="weight")


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("size", [4, 5, 12, 16])
def test_scales_are_those_of_each_part(axis: int, size: int) -> None:
    values = np.random.default_rng(0).standard_normal((12, 12)).astype(np.float32)
    found = weight_qparams(values, block(size, axis))
    parts = -(-12 // size)
    assert found.scale.shape == ((parts, 12) if axis == 0 else (12, parts))
    assert (found.axis, found.block_size) == (axis, size)
    along = np.moveaxis(values, axis, 0)
    scales = np.moveaxis(found.scale, axis, 0)
    for i in range(parts):
        part = np.abs(along[i * size : (i + 1) * size]).max(axis=0)
        np.testing.assert_array_equal(scales[i], np.float32(part.astype(np.float64) / 7))
    error = np.abs(numerics.fake_quantize(values, found) - values)
    assert (error <= numerics.spread(found.scale, found, values.shape) / 2 * 1.0001).all()


@pytest.mark.parametrize("observer", ["mse", "entropy"])
def test_the_search_is_no_worse_than_the_whole_range(observer: str) -> None:
    values = np.random.default_rng(1).standard_normal((64, 3)).astype(np.float32)
    errors = [
        np.square(numerics.fake_quantize(values, weight_qparams(values, block(32, 0, name))) - values).sum()
        for name in (observer, "minmax")
    ]
    assert errors[0] < errors[1]
