"""What budgets say, and which are refused."""

import pytest

from onnxqat.bit_allocation.budget import Budget
from onnxqat.bit_allocation.candidates import Layer, Widths
from onnxqat.bit_allocation.costs import LayerCosts, amount, units
from onnxqat.bit_allocation.layer_times import LayerTimes
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
        Budget(min_sqnr=20.0, minimize="energy")  # type: ignore[arg-type]
    assert Budget(max_drop=1.0).amount(5.0) is None
    assert Budget(max_drop=1.0, minimize="multiply-bits").cost == "multiply-bits"


@pytest.mark.parametrize(
    ("text", "expected"), [("4ms", 4.0), ("0.5 s", 500.0), ("250us", 0.25), ("60%", 6.0), (3, 3.0)]
)
def test_times(text: str | float, expected: float) -> None:
    assert Budget(latency=text).amount(10.0) == pytest.approx(expected)
    assert Budget(latency=text).cost == "latency"


@pytest.mark.parametrize("text", ["4kB", "0ms", "fast"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError, match=r"--latency .* is no amount"):
        Budget(latency=text).amount(10.0)


@pytest.mark.parametrize("text", ["120%", "0", "most", -0.5])
def test_what_is_no_share(text: str | float) -> None:
    with pytest.raises(UsageError, match="is no share"):
        Budget(integer_share=text).amount(1.0)


def test_what_is_not_on_integers_is_the_rest_of_a_share() -> None:
    assert Budget(integer_share="90%").amount(1000.0) == pytest.approx(100.0)
    assert Budget(integer_share=0.9).cost == "float-multiplications"


LAYER = Layer("conv", "conv", "Conv", "w", 0, 1000, 50_000, Widths(8, 8), {}, (8, 16))


def test_costs() -> None:
    assert amount(units(LAYER, Widths(4, 8), "weight-bytes"), "weight-bytes") == 500.0
    assert units(LAYER, Widths(4, 16), "multiply-bits") == 50_000 * 4 * 16
    assert units(LAYER, Widths(32, 32), "weight-bytes") == 32_000
    assert [units(LAYER, w, "float-multiplications") for w in (Widths(8, 8), Widths(32, 32))] == [0, 50_000]


def test_times_of_all_other_kernels_are_fixed() -> None:
    times = LayerTimes({"conv": 2e-3}, {"conv": 5e-3}, integer_total=3e-3, float_total=7e-3)
    cost = LayerCosts("latency", (LAYER,), times)
    assert [cost.total(cost.units(LAYER, w)) for w in (Widths(8, 8), Widths(32, 32))] == pytest.approx([3.0, 6.0])
    assert cost.whole == pytest.approx(7.0)
