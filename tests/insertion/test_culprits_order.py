"""Culprits measured in the order of gradients."""

from collections.abc import Sequence

from onnxqat.insertion.culprits import DOUBT, Ranked, Unit

EXPECTED: dict[Unit, float] = {(0,): 0.1, (1,): 4.0, (2,): 2.0, (3,): 0.001, (4, 5): 1.0}
ALONE: dict[Unit, float] = {(0,): 0.3, (1,): 1.0, (2,): 0.05, (3,): 9.0, (4, 5): 0.6}


def ranked(measured: list[Unit], least: float = 0.1) -> Ranked:
    def noise(units: Sequence[Unit]) -> float:
        measured.extend(units)
        return sum(ALONE[unit] for unit in units)

    return Ranked(EXPECTED, noise, least)


def test_the_most_expected_are_measured_first_and_the_quiet_are_left_out() -> None:
    measured: list[Unit] = []
    search = ranked(measured)
    assert not search.ended
    assert list(search.more(lambda: True)) == [((1,), 1.0), ((4, 5), 0.6)]
    # Of (0,), 0.024 would be left by what was measured of what was expected: less than a quarter of what is of interest.
    assert measured == [(1,), (2,), (4, 5)]
    assert search.ended
    assert search.rest == (0.1 + 0.001) * 1.65 / 7.0 < 0.1 / DOUBT


def test_the_search_goes_on_where_it_stopped() -> None:
    measured: list[Unit] = []
    search = ranked(measured, least=0.01)
    assert next(search.more(lambda: True)) == ((1,), 1.0)
    assert list(search.more(lambda: False)) == []
    assert [unit for unit, _ in search.more(lambda: True)] == [(2,), (4, 5), (0,)]
    assert search.ended
