"""Concats that one scale would ruin."""

import numpy as np
import pytest

from onnxqat.calibration.mixed_range import RATIO, RATIO_AT_OUTPUT, mixed_range
from onnxqat.calibration.observers import create
from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.types import QType, TensorSpec
from tests.backends.planning import graph

INNER = 'g (float[2] a, float[2] b) => (float[4] y) { ["cat"] c = Concat<axis = 0>(a, b) y = Relu(c) }'
OUTER = 'g (float[2] a, float[2] b) => (float[4] y) { ["cat"] c = Concat<axis = 0>(a, b) y = Identity(c) }'


def seen(low: float, high: float) -> BaseObserver:
    observer = create(TensorSpec(QType("uint8", 0, 255), symmetric=False))
    observer.update(np.float32([low, high]))
    return observer


@pytest.mark.parametrize(("text", "limit"), [(INNER, RATIO), (OUTER, RATIO_AT_OUTPUT)])
@pytest.mark.parametrize("swap", [False, True])
def test_ratio(text: str, limit: float, swap: bool) -> None:
    for factor, mixed in ((0.99, False), (1.01, True)):
        ranges = [seen(-1, 0.5), seen(0, limit * factor)]
        observers = dict(zip("ab", reversed(ranges) if swap else ranges, strict=True))
        names, remarks = mixed_range(graph(text), observers)
        assert names == ({"cat": "a" if swap else "b"} if mixed else {})
        assert [r.nodes for r in remarks] == ([("cat",)] if mixed else [])


def test_the_remark_says_by_how_much() -> None:
    _, (remark,) = mixed_range(graph(INNER), {"a": seen(0, 1), "b": seen(-640, 0)})
    assert remark.message == "Concat 'cat' stays float: the ranges of its inputs differ by a factor of 640"


@pytest.mark.parametrize("observers", [{}, {"a": seen(0, 1)}, {"a": seen(0, 0), "b": seen(0, 1000)}])
def test_nothing_to_compare(observers: dict[str, BaseObserver]) -> None:
    assert mixed_range(graph(OUTER), observers) == ({}, [])


def test_other_operators() -> None:
    found = graph('g (float[2] a, float[2] b) => (float[2] y) { ["add"] y = Add(a, b) }')
    assert mixed_range(found, {"a": seen(0, 1), "b": seen(0, 1000)}) == ({}, [])
