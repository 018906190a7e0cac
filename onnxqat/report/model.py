"""A report as data: what the terminal, JSON and HTML views show."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from onnxqat.printing import printable
from onnxqat.types import Remark
from onnxqat.verdict import Verdict

Cell: TypeAlias = "str | int | float | bool | None"
Kind = Literal["text", "count", "share", "decibel", "number", "verdict"]

DECIBEL_FULL = 60.0
"""Value at which a bar of a decibel column is full: quantization at 8 bits hardly gives more."""


@dataclasses.dataclass(frozen=True)
class Figure:
    """One key figure.

    Attributes:
        key: stable name, for JSON.
        label: for readers.
        value: the figure; a share is 0..1.
        kind: how it is written.
        note: what it is compared with, or why it matters.
    """

    key: str
    label: str
    value: Cell
    kind: Kind = "text"
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table; `bar` draws the value as a bar in HTML."""

    key: str
    title: str
    kind: Kind = "text"
    bar: bool = False


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of cells.

    Attributes:
        key: stable name, for JSON.
        title: for readers.
        columns: one per cell of a row.
        rows: all of them; a view may show the first `shown` only, and then says so.
        shown: rows that a terminal shows.
        note: one line about how to read it.
    """

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    shown: int = 20
    note: str = ""

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"table {self.key!r} has rows of other length than its {len(self.columns)} columns")


def rows_of(items: Iterable[object], columns: Sequence[Column]) -> tuple[tuple[Cell, ...], ...]:
    """A row for each of `items`: its attributes of the names that the keys of `columns` are, names joined by commas."""
    return tuple(tuple(_cell(getattr(item, column.key)) for column in columns) for item in items)


def _cell(value: Cell | tuple[str, ...]) -> Cell:
    return ", ".join(value) if isinstance(value, tuple) else value


@dataclasses.dataclass(frozen=True)
class LeftFloat:
    """A node that stays in float, and why."""

    node: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Report:
    """Result of a command, in a form for terminal, JSON and HTML.

    Attributes:
        kind: the command, for JSON.
        title: headline.
        passed: whether the check held; None where nothing was judged.
        verdicts: the answers to single questions, which stand in place of one word; `passed` is false where one is red.
        figures: key figures, most important first.
        tables: details.
        failures: why a check failed.
        remarks: what is worth knowing.
        files: paths of the files written.
        left_float: nodes that stay in float; None where the command did not look.
        next_command: the command to run now; empty where there is nothing to do.
        details: what does not go into tables, by key; of values that JSON has, which alone shows them.
    """

    kind: str
    title: str
    passed: bool | None = None
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    failures: tuple[str, ...] = ()
    remarks: tuple[Remark, ...] = ()
    files: tuple[str, ...] = ()
    left_float: tuple[LeftFloat, ...] | None = None
    next_command: str = ""
    verdicts: tuple[Verdict, ...] = ()
    details: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @property
    def outcome(self) -> str:
        """``passed`` or ``failed``; "" where that is open, or where no single word stands for all verdicts."""
        if self.passed is None or self.verdicts:
            return ""
        return "passed" if self.passed else "failed"


def shown(value: Cell, kind: Kind) -> str:
    """A cell as text; an empty cell is a dash, an infinite ratio of signal to noise is ``exact``."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        yes, no = ("passed", "failed") if kind == "verdict" else ("yes", "no")
        return yes if value else no
    if isinstance(value, str):
        return printable(value)
    if kind == "decibel":
        return "exact" if value == math.inf else f"{value:.1f} dB"
    if kind == "share":
        return f"{value:.2%}" if not value or value >= 1e-4 else f"{value:.1e}"
    if kind == "count" or isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}"


def filled(value: Cell, kind: Kind) -> float:
    """Return the filled part of a cell's bar, 0..1: decibels over :data:`DECIBEL_FULL`, other numbers as they are."""
    if not isinstance(value, (int, float)) or math.isnan(value):
        return 0.0
    full = DECIBEL_FULL if kind == "decibel" else 1.0
    return min(max(value / full, 0.0), 1.0)


def grouped(left: tuple[LeftFloat, ...]) -> list[tuple[str, list[str]]]:
    """Reasons with the nodes that they keep in float, most nodes first."""
    found: dict[str, list[str]] = {}
    for item in left:
        found.setdefault(item.reason, []).append(item.node)
    return sorted(found.items(), key=lambda entry: -len(entry[1]))
