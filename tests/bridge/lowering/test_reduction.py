"""Reductions: the forms that the node tests of ONNX leave out."""

import numpy as np
import pytest

from tests.bridge import one_node, parity

X = np.random.default_rng(0).random((2, 3), np.float32) - np.float32(0.5)


@pytest.mark.parametrize("axes", [None, np.zeros(0, np.int64)], ids=["no axes", "empty axes"])
@pytest.mark.parametrize("name", ["L1", "L2", "SumSquare", "LogSum", "LogSumExp"])
def test_what_is_not_reduced_still_has_its_elements_computed(name: str, axes: np.ndarray | None) -> None:
    x = abs(X) if name == "LogSum" else X
    inputs = {"x": x, "axes": axes}
    parity.check(one_node.make(f"Reduce{name}", inputs, constants=["axes"], opset=18, noop_with_empty_axes=1), {"x": x})


def test_no_number_but_1_keeps_the_dimensions() -> None:
    parity.check(one_node.make("ReduceMean", {"x": X}, opset=13, keepdims=-1), {"x": X})
