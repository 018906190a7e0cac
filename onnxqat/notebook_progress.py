"""Progress in a notebook by default: a bar below the cell while a public function works."""

from __future__ import annotations

import functools
import html
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
_ACTIVE: ContextVar[bool] = ContextVar("_ACTIVE", default=False)
"""Set while a bar is shown: what a function calls on its way shows none of its own."""
INTERVAL = 0.2
"""Seconds between two drawings at least: each is a message to the notebook, and hundreds a second would slow it down."""


def in_notebook() -> bool:
    """Check whether the program runs in a Jupyter kernel, as opposed to a script or a terminal."""
    # Whoever runs in a kernel has IPython loaded already, so that nothing is imported to find out.
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class _Bar:
    """Text, or a bar where the length is known, as notebooks and text frontends show it."""

    def __init__(self, what: str) -> None:
        self.what, self.done, self.total = what, 0, 0
        self.told = ""

    def __repr__(self) -> str:
        count = f"{self.done} of {self.total}" if self.total else str(self.done or "")
        said = self.told or count
        return f"{self.what}: {said}" if said else self.what

    def _repr_html_(self) -> str:
        bar = f' <progress max="{self.total}" value="{self.done}"></progress>' if self.total else ""
        return f"<span>{html.escape(repr(self))}</span>{bar}"


class _Shown:
    """A callback that draws; takes what the functions of onnxqat tell: counts, a report of a step, or a line."""

    def __init__(self, what: str) -> None:
        from IPython.display import display

        show: Any = display  # IPython gives it no types
        self._bar, self._drawn = _Bar(what), 0.0
        self._handle = show(self._bar, display_id=True)

    def __call__(self, *told: Any) -> None:
        """Take what was done, and draw it now and then."""
        if isinstance(told[0], str):
            self._bar.told = told[0]
        elif len(told) == 1:
            self._bar.done, self._bar.total = told[0].step, told[0].total_steps
        else:
            self._bar.done, self._bar.total = told[0], told[1] or 0
        if time.monotonic() - self._drawn >= INTERVAL:
            self.draw()

    def draw(self) -> None:
        """Draw the bar as it is now."""
        self._drawn = time.monotonic()
        self._handle.update(self._bar)


def shown(what: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator: without `progress`, the function shows one in a notebook.

    Args:
        what: word in front of the bar.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def run(*arguments: P.args, **keywords: P.kwargs) -> R:
            if keywords.get("progress") is not None or _ACTIVE.get() or not in_notebook():
                return function(*arguments, **keywords)
            bar, before = _Shown(what), _ACTIVE.set(True)
            try:
                return function(*arguments, **{**keywords, "progress": bar})  # type: ignore[arg-type]
            finally:
                _ACTIVE.reset(before)
                bar.draw()

        return run

    return decorate
