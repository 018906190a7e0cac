"""Unique."""

import numpy as np
import pytest
import torch
from onnx import helper

from onnxqat.bridge.importing.importer import to_torch
from tests.bridge import lowering_checks, one_node, parity

RANDOM = np.random.default_rng(0)
ARRAYS = {
    "floats": np.round(RANDOM.standard_normal(9)).astype(np.float32),
    "integers": RANDOM.integers(-2, 2, (4, 3)),
    "cube": np.round(RANDOM.standard_normal((3, 2, 4))).astype(np.float32),
    "bytes": RANDOM.integers(0, 3, (5, 2)).astype(np.int8),
    "one": np.array([7.0], np.float32),
}


def model(x, **options):
    kinds = {"y": helper.np_dtype_to_tensor_dtype(x.dtype), "first": 7, "inverse": 7, "counts": 7}
    return one_node.make("Unique", {"x": x}, outputs=kinds, opset=11, **options)


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("ordered", [0, 1])
def test_unique_equals_onnxruntime(name, ordered) -> None:
    x = ARRAYS[name]
    for axis in (None, *range(-x.ndim, x.ndim)):
        parity.check(model(x, axis=axis, sorted=ordered), {"x": x})


def test_nan_is_one_element_as_in_numpy() -> None:
    x = np.array([np.nan, 1, np.nan, 0, 1, np.nan], np.float32)
    found = parity.run_module(to_torch(model(x)), {"x": x})
    for f, w in zip(found, np.unique(x, True, True, True), strict=True):
        np.testing.assert_array_equal(f, w)


def test_only_the_outputs_that_exist_are_returned() -> None:
    x = ARRAYS["floats"]
    made = one_node.make("Unique", {"x": x}, outputs={"y": 1, "": 7, "inverse": 7}, opset=11)
    y, inverse = parity.run_module(to_torch(made), {"x": x})
    np.testing.assert_array_equal(y[inverse], x)


def test_the_gradient_goes_to_the_first_occurrence() -> None:
    x = np.array([2, 1, 2], np.float32)
    made = one_node.make("Unique", {"x": x}, opset=11)
    assert lowering_checks.gradients(made, {"x": x})[0].equal(torch.tensor([4.0, 2.0, 0.0]))
