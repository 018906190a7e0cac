"""Parameters of which a default run takes some and ``make test-all`` all: the others have the mark ``repetition``.

For tests that say the same of every pair of a model and a table, or of a mode and a rank: what one pair shows that no
other does is rare, and hundreds of pairs take longer than all other tests.
"""

from collections.abc import Collection, Sequence
from typing import Any

import pytest


def pairs(first: Sequence[Any], second: Sequence[Any], *marks: pytest.MarkDecorator) -> list[Any]:
    """All pairs. By default each value comes once, with the next one of the other side, which may begin again.

    Args:
        first: values of the first parameter.
        second: values of the second.
        marks: of every pair.
    """
    found = []
    for i, one in enumerate(first):
        for j, other in enumerate(second):
            default = i % len(second) == j if len(first) >= len(second) else j % len(first) == i
            found.append(pytest.param(one, other, marks=marks if default else (*marks, pytest.mark.repetition)))
    return found


def some(values: Sequence[Any], *, default: Collection[Any]) -> list[Any]:
    """All `values`, of which a default run takes `default`: one of each kind.

    Args:
        values: of a parameter.
        default: those that show what the others of their kind do.
    """
    assert set(default) <= set(values)
    return [pytest.param(value, marks=() if value in default else pytest.mark.repetition) for value in values]
