"""Means over windows on codes: padding, and what of it counts."""

from __future__ import annotations

import numpy as np
import pytest

from onnxqat import to_torch
from onnxqat.bridge.integer.unit import Unit
from tests.bridge.integer.one_operator import between_pairs, check

WINDOWS = [
    ("kernel_shape = [3, 3], pads = [1, 1, 1, 1]", "N, 3, 9, 8"),
    ("kernel_shape = [3, 2], strides = [2, 1], pads = [1, 0, 0, 1]", "N, 3, 9, 8"),
    ("kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], count_include_pad = 1", "N, 3, 9, 8"),
    ('kernel_shape = [2, 3], strides = [2, 2], auto_pad = "SAME_UPPER"', "N, 3, 9, 8"),
    ("kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1", "N, 3, 8, 8"),
    ("kernel_shape = [5], strides = [2], pads = [2, 2]", "N, 3, 30"),
    ("kernel_shape = [2, 2, 2], strides = [2, 2, 2]", "N, 2, 4, 4, 6"),
]


@pytest.mark.parametrize(("window", "shape"), WINDOWS)
@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_as_in_the_default_session(window: str, shape: str, kind: str) -> None:
    zeros = (131, 119) if kind == "uint8" else (3, -9)
    model = between_pairs(f"AveragePool <{window}> (v)", shape, kind=kind, zeros=zeros)
    size = [40, *map(int, shape.split(", ")[1:])]
    check(model, np.random.default_rng(0).standard_normal(size).astype(np.float32), "Average")


def test_a_chip_that_shifts_divides_by_one_number() -> None:
    model = between_pairs("AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (v)", "N, 3, 9, 8")
    assert not any(isinstance(m, Unit) for m in to_torch(model, arithmetic="shift").modules())
    assert any(isinstance(m, Unit) for m in to_torch(model, arithmetic="fixed-point").modules())
