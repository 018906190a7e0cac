"""Each value of either parameter is in the default run."""

import pytest

from tests.repetitions import pairs, some


@pytest.mark.parametrize(("first", "second"), [("abcdef", "xyz"), ("abc", "wxyz"), ("ab", "xy"), ("a", "xy")])
def test_every_value_comes_by_default(first: str, second: str) -> None:
    found = pairs(first, second, pytest.mark.slow)
    assert [p.values for p in found] == [(a, b) for a in first for b in second]
    default = [p.values for p in found if pytest.mark.repetition not in p.marks]
    assert ({a for a, _ in default}, {b for _, b in default}) == (set(first), set(second))
    assert len(default) == max(len(first), len(second))
    assert all(pytest.mark.slow in p.marks for p in found)


def test_some_values_come_by_default() -> None:
    found = some(["a", "b", "c"], default=["b"])
    assert [p.values for p in found] == [("a",), ("b",), ("c",)]
    assert [p.values for p in found if pytest.mark.repetition not in p.marks] == [("b",)]
