"""com.microsoft operators from before ONNX had the like, against onnxruntime."""

import numpy as np
import pytest
import torch

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.errors import UnsupportedError
from tests.bridge import lowering_checks, one_node, parity

RANDOM = np.random.default_rng(0)
IMAGE = RANDOM.standard_normal((2, 3, 6, 7)).astype(np.float32)
ROWS = RANDOM.standard_normal((4, 8)).astype(np.float32)
REGIONS = np.array([[0.1, 0.1, 0.8, 0.9], [-0.2, 0.3, 1.1, 0.6], [0.9, 0.8, 0.1, 0.2]], np.float32)
CROP = {"x": IMAGE, "r": REGIONS, "b": np.array([0, 1, 0], np.int32)}
GRID = {"x": IMAGE, "g": RANDOM.standard_normal((2, 4, 3, 2)).astype(np.float32)}
CASES = {
    "CDist": ({"a": ROWS, "b": ROWS[::2] + 1}, {"metric": "euclidean"}),
    "CDist squared": ({"a": ROWS, "b": ROWS[::2] + 1}, {}),
    "CropAndResize": (CROP | {"s": np.array([3, 4], np.int32)}, {"extrapolation_value": -5.0}),
    "CropAndResize nearest": (CROP | {"s": np.array([1, 4], np.int32)}, {"mode": "nearest"}),
    "ExpandDims": ({"x": ROWS, "axis": np.array(-1, np.int32)}, {"rank": 3}),
    "GatherND": ({"x": ROWS, "i": np.array([[0, 1], [3, -2]])}, {"rank": 1}),
    "GatherND rows": ({"x": ROWS, "i": np.array([[0], [-1], [0]])}, {"rank": 2}),
    "GridSample": (GRID, {"padding_mode": "reflection"}),
    "GridSample bicubic": (GRID, {"mode": "bicubic", "align_corners": 1}),
    "Inverse": ({"x": RANDOM.standard_normal((2, 3, 3)).astype(np.float32)}, {}),
    "Pad": ({"x": ROWS, "p": np.array([0, 1, 0, 2]), "v": np.array([1.5], np.float32)}, {}),
    "Pad reflect": ({"x": ROWS, "p": np.array([[0, 1, 0, 2]])}, {"mode": "reflect"}),
    "Trilu": ({"x": ROWS, "k": np.array(-1)}, {"upper": 0}),
    "UnfoldTensor": ({"x": ROWS}, {"size": 3, "step": 2, "rank": 3}),
    "UnfoldTensor dim": ({"x": IMAGE}, {"dim": 1, "size": 2, "rank": 5}),
}
NUMBERS = {"axis", "i", "p", "k", "s", "b"}


@pytest.mark.parametrize("case", CASES)
def test_equals_onnxruntime_with_finite_gradients(case: str) -> None:
    inputs, options = CASES[case]
    fixed = [name for name, array in inputs.items() if name in NUMBERS and array.dtype.kind == "i"]
    model = one_node.make(case.split()[0], inputs, constants=fixed, domain="com.microsoft", **options)
    given = {name: array for name, array in inputs.items() if name not in fixed}
    parity.check(model, given)
    assert all(torch.isfinite(g).all() for g in lowering_checks.gradients(model, given))


def test_unique_keeps_the_order_of_the_input() -> None:
    x = np.array([3, 1, 3, 2, 1, 1], np.float32)
    outputs = {"y": 1, "places": 7, "counts": 7}
    parity.check(one_node.make("Unique", {"x": x}, outputs=outputs, domain="com.microsoft"), {"x": x})


def test_other_metrics_are_refused() -> None:
    model = one_node.make("CDist", {"a": ROWS, "b": ROWS}, domain="com.microsoft", metric="cosine")
    with pytest.raises(UnsupportedError, match="metric cosine"):
        to_torch(model)
