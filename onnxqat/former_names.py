"""Former names of parameters, taken for one more release: scripts of users outlive the names in them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Take each of `names`, former keywords of a function, as its name of today, with a ``FutureWarning``.

    Raises:
        TypeError: both names are given.
    """

    def of(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def run(*arguments: P.args, **keywords: P.kwargs) -> R:
            for former, today in names.items():
                if former not in keywords:
                    continue
                called = getattr(function, "__name__", "the function")
                if today in keywords:
                    raise TypeError(f"{called}() got {today} and {former}, its former name")
                warnings.warn(f"{called}({former}=) is now {today}=", FutureWarning, stacklevel=2)
                keywords[today] = keywords.pop(former)
            return function(*arguments, **keywords)

        return run

    return of
