"""A report for people at a terminal; plain text, nothing cut off, where the output is a file or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import IO

from onnxqat import printing
from onnxqat.counts import counted
from onnxqat.report.model import Report, Table, grouped, shown
from onnxqat.types import Remark

_NAMES_SHOWN = 4
_WIDEST = 100  # longer cells of plain text run over: their length times all rows would be the size of the table
_NARROWEST = 16  # a column of names below this width is not read any more


def show(report: Report, file: IO[str] | None = None, *, details: bool = False) -> None:
    """Write `report` to `file`, standard output by default.

    `details`: what passes rewrote is listed, and not only counted. A terminal gets colour and tables that fit its width; everything else gets :func:`to_text`.
    """
    file = file or sys.stdout
    if not file.isatty():
        printing.echo(to_text(report, details=details).removesuffix("\n"), file=file)
        return
    _show_rich(printing.shown(report), file, details)


def to_text(report: Report, *, details: bool = False) -> str:
    """The report as plain text, columns aligned, all rows; with `details` the rewrites of passes too."""
    report = printing.shown(report)
    lines = [_headline(report), *_verdict_lines(report), *([""] if report.figures else [])]
    width = max((len(f.label) for f in report.figures), default=0)
    for figure in report.figures:
        note = f"  ({figure.note})" if figure.note else ""
        lines.append(f"  {figure.label:<{width}}  {shown(figure.value, figure.kind)}{note}")
    for table in report.tables:
        lines += ["", table.title, *_plain_table(table)]
        lines += [f"  {table.note}"] if table.note else []
    for title, items in _closing(report, details):
        lines += ["", title, *(f"  {item}" for item in items)]
    return "\n".join(lines).strip("\n") + "\n"


def _verdict_lines(report: Report) -> Iterator[str]:
    """A line for each verdict, with its remedy below it."""
    width = max((len(verdict.name) for verdict in report.verdicts), default=0)
    for verdict in report.verdicts:
        yield f"  {verdict.name:<{width}}  {verdict.status.upper():<5}  {verdict.reason}"
        if verdict.remedy:
            yield f"  {'':<{width}}         {verdict.remedy}"


def _headline(report: Report) -> str:
    outcome = "FAILED" if report.outcome == "failed" else report.outcome
    return f"{report.title}: {outcome}" if outcome else report.title


def _plain_table(table: Table) -> Iterator[str]:
    cells = [[shown(v, c.kind) for v, c in zip(row, table.columns, strict=True)] for row in table.rows]
    head = [c.title for c in table.columns]
    widths = [max(min(len(line[i]), _WIDEST) for line in [head, *cells]) for i in range(len(head))]
    for line in [head, *cells]:
        padded = [
            text.ljust(w) if c.kind in ("text", "verdict") else text.rjust(w)
            for text, w, c in zip(line, widths, table.columns, strict=True)
        ]
        yield "  " + "  ".join(padded).rstrip()


def _closing(report: Report, details: bool) -> Iterator[tuple[str, list[str]]]:
    """The end of every report: failures, remarks, what was written, what stays float and why, what to run next."""
    if report.failures:
        yield "Failed because", list(report.failures)
    for concern, title in (("result", "What changes your result"), ("note", "Remarks"), ("detail", "Details")):
        found = [remark for remark in report.remarks if remark.concern == concern]
        if concern == "detail" and not details:
            if found:
                yield title, [f"{counted(len(found), 'detail')} of what was done: -v lists them"]
        elif found:
            yield title, [_remark(remark) for remark in found]
    yield "Written", list(report.files) or ["nothing"]
    if report.left_float is not None:
        left = [f"{reason}: {_names_text(nodes)}" for reason, nodes in grouped(report.left_float)]
        yield "Left in float", left or ["nothing"]
    if report.next_command:
        yield "Next", [report.next_command]


def _remark(remark: Remark) -> str:
    source = f"{remark.source}: " if remark.source else ""
    return source + remark.message + (f" ({_names_text(list(remark.nodes))})" if remark.nodes else "")


def _names_text(names: list[str]) -> str:
    head = ", ".join(name for name in names[:_NAMES_SHOWN])
    return head + (f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else "")


def _show_rich(report: Report, file: IO[str], details: bool) -> None:
    """Print the report in colour, in the width of the terminal."""
    # Names come from strangers' files: everything goes in as Text, so that no markup in them counts.
    from rich.console import Console
    from rich.text import Text

    console = Console(file=file, highlight=False, markup=False, emoji=False)
    style = {None: "bold", True: "bold green", False: "bold red"}[None if report.verdicts else report.passed]
    console.print(Text(_headline(report), style=style))
    for verdict in report.verdicts:
        line = Text(f"{verdict.name}  ", style="bold")
        line.append(
            verdict.status.upper(),
            style={"green": "bold green", "amber": "bold yellow", "red": "bold red"}[verdict.status],
        )
        line.append(f"  {verdict.reason}", style="not bold")
        console.print(_indented(line))
        if verdict.remedy:  # a command is copied: it is one line, whatever the width
            console.print(Text(f"    {verdict.remedy}", style="cyan"), soft_wrap=True)
    if report.figures:
        console.print()
    width = max((len(f.label) for f in report.figures), default=0)
    for figure in report.figures:
        line = Text(f"  {figure.label:<{width}}  ", style="dim")
        line.append(shown(figure.value, figure.kind), style="bold not dim")
        if figure.note:
            line.append(f"  ({figure.note})")
        console.print(line)
    for table in report.tables:
        console.print()
        widths = _widths(table, console.width)
        if widths is not None:
            console.print(_rich_table(table, widths))
        else:
            console.print(Text(table.title, style="bold"))
            for row in _stacked(table):
                console.print(_indented(Text(row.lstrip()), 4 if row.startswith(" ") else 2))
        rest = len(table.rows) - table.shown
        for text in (f"... and {rest} more rows: see --json or the HTML report" if rest > 0 else "", table.note):
            if text:
                console.print(_indented(Text(text, style="dim")))
    for title, items in _closing(report, details):
        console.print()
        console.print(Text(title, style="bold red" if title.startswith("Failed") else "bold"))
        for item in items:
            if title == "Next":  # a command is copied: it is one line, whatever the width
                console.print(Text(f"  {item}", style="cyan"), soft_wrap=True)
            else:
                console.print(_indented(Text(item)))


def _indented(text: object, by: int = 2) -> object:
    from rich.padding import Padding

    return Padding(text, (0, 0, 0, by), expand=False)  # type: ignore[arg-type]  # a renderable; rich is loaded late


def _widths(table: Table, width: int) -> list[int] | None:
    """Width of each column so that the table fits into `width`; None where it cannot be read at that.

    Text is wrapped down to :data:`_NARROWEST`, numbers and words of headings are not. rich shrinks columns below their
    ``min_width`` and cuts off the last ones, so widths are computed here.
    """
    widest, least = [], []
    for i, column in enumerate(table.columns):
        cells = max([len(shown(row[i], column.kind)) for row in table.rows[: table.shown]] or [0])
        word = max(map(len, column.title.split()), default=0)
        text = column.kind in ("text", "verdict")
        widest.append(max(cells, len(column.title)))
        least.append(max(min(cells, _NARROWEST) if text else cells, word))
    available = width - 3 * len(table.columns) - 1  # padding on both sides, and the edge of SIMPLE_HEAD
    if sum(least) > available:
        return None
    widths = widest
    while (excess := sum(widths) - available) > 0:
        i = max((i for i in range(len(widths)) if widths[i] > least[i]), key=lambda i: widths[i] - least[i])
        widths[i] = max(least[i], widths[i] - max(excess // len(widths), 1))
    return widths


def _stacked(table: Table) -> Iterator[str]:
    """The rows one below the other, for a terminal that is too narrow for the columns."""
    for row in table.rows[: table.shown]:
        cells = [shown(v, c.kind) for v, c in zip(row, table.columns, strict=True)]
        yield cells[0]
        yield "  " + "; ".join(f"{c.title}: {cell}" for c, cell in zip(table.columns[1:], cells[1:], strict=True))


def _rich_table(table: Table, widths: list[int]) -> object:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(title=Text(table.title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column, width in zip(table.columns, widths, strict=True):
        text = column.kind in ("text", "verdict")
        drawn.add_column(Text(column.title), justify="left" if text else "right", overflow="fold", width=width)
    for row in table.rows[: table.shown]:
        drawn.add_row(*(Text(shown(v, c.kind)) for v, c in zip(row, table.columns, strict=True)))
    return drawn
