"""Arithmetic on the numbers of shapes equals that of ONNX tensors."""

import numpy as np
import pytest

from onnxqat.bridge.functional import shape_math

NUMBERS = [0.0, 1.0, -1.0, 0.1, 1 / 3, 1e-30, 123456789.0, -7.3e20, float("inf")]


@pytest.mark.parametrize("value", NUMBERS)
def test_single_rounds_to_float32(value: float) -> None:
    assert shape_math.single(value) == float(np.float32(value))


@pytest.mark.parametrize("a", [0.1, 3.0, 7.0, 1e8])
@pytest.mark.parametrize("b", [0.7, 3.0, 1e-3])
def test_float_arithmetic_is_float32(a: float, b: float) -> None:
    x, y = np.float32(a), np.float32(b)
    assert shape_math.multiply(float(x), float(y)) == float(x * y)
    assert shape_math.divide(float(x), float(y)) == float(x / y)
    assert shape_math.add(float(x), float(y)) == float(x + y)
    assert shape_math.square_root(float(x)) == float(np.sqrt(x))


@pytest.mark.parametrize(("a", "b", "quotient"), [(7, 2, 3), (-7, 2, -3), (7, -2, -3), (-7, -2, 3), (0, 5, 0)])
def test_integers_divide_towards_zero(a: int, b: int, quotient: int) -> None:
    assert shape_math.divide(a, b) == quotient


def test_conversions() -> None:
    assert shape_math.to_int(-1.7) == -1
    assert shape_math.to_float(3) == 3.0
    assert shape_math.round_half_even(2.5) == 2.0
    assert shape_math.power(2, 3) == 8
