"""Promises that an extension of a kind makes, and the result of trying them on small data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TypeVar

from onnxqat.errors import QatError

CaseT = TypeVar("CaseT")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One promise that an extension of a kind makes, as a check found it.

    Attributes:
        name: of the promise, as in ``numbers`` or ``gradient``.
        passed: whether it is kept.
        message: what is wrong; for a promise that is kept mostly empty, else what was not asked of it.
    """

    name: str
    passed: bool
    message: str = ""


@dataclasses.dataclass(frozen=True)
class ExtensionCheck:
    """Findings about one extension.

    Attributes:
        name: of the extension.
        findings: one for each promise of its kind.
        tried: what it was tried on, in a sentence; empty where the promises say it.
    """

    name: str
    findings: tuple[Finding, ...]
    tried: str = ""

    @property
    def passed(self) -> bool:
        """Check whether every promise is kept."""
        return all(finding.passed for finding in self.findings)


class BrokenError(AssertionError):
    """A promise that is not kept.

    Args:
        message: what was seen.
        promise: its name, for a trial of several.
    """

    def __init__(self, message: str, promise: str = "") -> None:
        super().__init__(f"{promise}: {message}" if promise else message)
        self.promise = promise
        self.message = message


def try_each(trials: Mapping[str, Callable[[], str | None]]) -> tuple[Finding, ...]:
    """Run each trial, by the name of its promise; each returns a remark or None, or raises what is wrong."""
    return tuple(_try(name, trial) for name, trial in trials.items())


def of_each(trial: Callable[[CaseT], None], cases: Mapping[str, CaseT]) -> Callable[[], None]:
    """Return the trial of all `cases`, by name; what is broken is told with the name of its case."""

    def run() -> None:
        for name, case in cases.items():
            _of_one(trial, name, case)

    return run


def _of_one(trial: Callable[[CaseT], None], name: str, case: CaseT) -> None:
    try:
        trial(case)
    except BrokenError as error:
        raise BrokenError(f"{name}: {error.message}") from None


def _try(name: str, trial: Callable[[], str | None]) -> Finding:
    try:
        remark = trial()
    except BrokenError as broken:
        return Finding(name, False, broken.message)
    except QatError as error:
        return Finding(name, False, error.message)
    except Exception as error:  # whatever a foreign extension does
        return Finding(name, False, in_one_line(error))
    return Finding(name, True, remark or "")


def in_one_line(error: Exception) -> str:
    """Return the kind and the first line of an error of foreign code."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
