"""What budgets say, and which are refused."""

import pytest

from onnxqat.bit_allocation.budget import Budget
from onnxqat.bit_allocation.candidates import Layer, Widths
from onnxqat.bit_allocation.costs import amount, bits
from onnxqat.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"), [("50%", 500.0), ("1.5kB", 1500.0), ("2M", 2e6), ("12", 12.0), (7, 7.0), ("3GB", 3e9)]
)
def test_amounts(text: str | float, expected: float) -> None:
    assert Budget(weight_bytes=text).amount(1000.0) == expected
    assert Budget(multiply_bits=text).amount(1000.0) == expected


@pytest.mark.parametrize("text", ["", "0", "-5", "half", "5 parts", "1e6%%"])
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(UsageError, match="is no amount"):
        Budget(weight_bytes=text).amount(1000.0)


def test_exactly_one_is_given() -> None:
    for given in ({}, {"weight_bytes": "50%", "min_sqnr": 20.0}):
        with pytest.raises(UsageError) as failed:
            Budget(**given)
        assert failed.value.code == "option-invalid"
    with pytest.raises(UsageError, match="minimize"):
        Budget(min_sqnr=20.0, minimize="latency")  # type: ignore[arg-type]
    assert Budget(max_drop=1.0).amount(5.0) is None
    assert Budget(max_drop=1.0, minimize="multiply-bits").cost == "multiply-bits"


def test_costs() -> None:
    layer = Layer("conv", "conv", "Conv", "w", 0, 1000, 50_000, Widths(8, 8), {}, (8, 16))
    assert amount(bits(layer, Widths(4, 8), "weight-bytes"), "weight-bytes") == 500.0
    assert bits(layer, Widths(4, 16), "multiply-bits") == 50_000 * 4 * 16
    assert bits(layer, Widths(32, 32), "weight-bytes") == 32_000
