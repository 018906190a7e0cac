"""Ranges of channels: one pass over the data for all that want some, and none before one is asked for."""

from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir
import pytest

from onnxqat.data.data import Data, open_data
from onnxqat.data.inputs import of_graph
from onnxqat.equalization.channel_ranges import ChannelRanges, spread
from tests.passes.checks import parse

TEXT = "g (float[N,2,3] v) => (float[N,2,3] y) <float two = {2}> { x = Mul(v, two) y = Neg(x) }"


@pytest.fixture
def model() -> ir.Model:
    return ir.from_proto(parse(TEXT))


@pytest.fixture
def opened(model: ir.Model) -> Callable[[np.ndarray], tuple[Data, list[int]]]:
    """Opens an array as data that count how often they are read."""

    def opening(values: np.ndarray) -> tuple[Data, list[int]]:
        passes: list[int] = []

        def batches() -> Iterator[np.ndarray]:
            passes.append(1)
            yield values

        return open_data(batches, of_graph(model.graph)), passes

    return opening


Opened = Callable[[np.ndarray], tuple[Data, list[int]]]


def test_one_pass_for_all(model: ir.Model, opened: Opened) -> None:
    values = np.float32([[[1, -2, 3], [40, 5, -6]]])
    data, passes = opened(values)
    before = len(passes)
    ranges = ChannelRanges(model, data)
    ranges.want({"x": 1})
    ranges.want({"y": -1}, rows=True)
    assert len(passes) == before
    low, high = ranges.of(["x"])["x"]
    assert (low.tolist(), high.tolist()) == ([-4, -12], [6, 80])
    once = len(passes)
    assert ranges.largest(["y"])["y"].tolist() == [80, 10, 12]
    np.testing.assert_array_equal(ranges.rows(["x", "y"])["y"], -2 * values[0])
    assert len(passes) == once
    ranges.forget(["x"])
    assert set(ranges.of(["x"])) == {"x"}
    assert len(passes) > once


def test_values_that_are_not_finite_have_no_ranges(model: ir.Model, opened: Opened) -> None:
    """Calibration itself says what is wrong, or takes a mask; equalization does without."""
    data, _ = opened(np.float32([[[1, -np.inf, 3], [4, 5, 6]]]))
    ranges = ChannelRanges(model, data)
    ranges.want({"x": 1})
    assert ranges.of(["x"]) == {}
    assert not ranges.has_data


def test_spread() -> None:
    assert spread(np.float32([8, 1, 0, 1])) == pytest.approx(4)
    assert spread(np.zeros(3, np.float32)) == 1
