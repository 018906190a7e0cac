"""A report for people at a terminal; plain text, nothing cut off, where the output is a file or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import IO

from onnxqat.report.model import Report, Table, grouped, printable, shown
from onnxqat.types import Remark

_NAMES_SHOWN = 4


def show(report: Report, file: IO[str] | None = None) -> None:
    """Write `report` to `file`, standard output by default.

    A terminal gets colour and tables that fit its width; everything else gets :func:`to_text`.
    """
    file = file or sys.stdout
    if not file.isatty():
        file.write(to_text(report))
        return
    _show_rich(report, file)


def to_text(report: Report) -> str:
    """The report as plain text, columns aligned, all rows."""
    lines = [_headline(report), ""]
    width = max((len(f.label) for f in report.figures), default=0)
    for figure in report.figures:
        note = f"  ({printable(figure.note)})" if figure.note else ""
        lines.append(f"  {figure.label:<{width}}  {shown(figure.value, figure.kind)}{note}")
    for table in report.tables:
        lines += ["", printable(table.title), *_plain_table(table)]
        lines += [f"  {table.note}"] if table.note else []
    for title, items in _closing(report):
        lines += ["", title, *(f"  {item}" for item in items)]
    return "\n".join(lines).strip("\n") + "\n"


def _headline(report: Report) -> str:
    verdict = "" if report.passed is None else (": passed" if report.passed else ": FAILED")
    return printable(report.title) + verdict


def _plain_table(table: Table) -> Iterator[str]:
    cells = [[shown(v, c.kind) for v, c in zip(row, table.columns, strict=True)] for row in table.rows]
    head = [c.title for c in table.columns]
    widths = [max(len(line[i]) for line in [head, *cells]) for i in range(len(head))]
    for line in [head, *cells]:
        padded = [
            text.ljust(w) if c.kind in ("text", "verdict") else text.rjust(w)
            for text, w, c in zip(line, widths, table.columns, strict=True)
        ]
        yield "  " + "  ".join(padded).rstrip()


def _closing(report: Report) -> Iterator[tuple[str, list[str]]]:
    """The end of every report: failures, remarks, what was written, what stays float and why, what to run next."""
    if report.failures:
        yield "Failed because", [printable(text) for text in report.failures]
    if report.remarks:
        yield "Remarks", [_remark(remark) for remark in report.remarks]
    yield "Written", [printable(name) for name in report.files] or ["nothing"]
    if report.left_float is not None:
        left = [f"{printable(reason)}: {_some(nodes)}" for reason, nodes in grouped(report.left_float)]
        yield "Left in float", left or ["nothing"]
    if report.next_command:
        yield "Next", [printable(report.next_command)]


def _remark(remark: Remark) -> str:
    source = f"{remark.source}: " if remark.source else ""
    return source + printable(remark.message) + (f" ({_some(list(remark.nodes))})" if remark.nodes else "")


def _some(names: list[str]) -> str:
    head = ", ".join(printable(name) for name in names[:_NAMES_SHOWN])
    return head + (f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else "")


def _show_rich(report: Report, file: IO[str]) -> None:
    # Names come from strangers' files: everything goes in as Text, so that no markup in them counts.
    from rich.console import Console
    from rich.text import Text

    console = Console(file=file, highlight=False, markup=False, emoji=False)
    style = {None: "bold", True: "bold green", False: "bold red"}[report.passed]
    console.print(Text(_headline(report), style=style))
    console.print()
    width = max((len(f.label) for f in report.figures), default=0)
    for figure in report.figures:
        line = Text(f"  {figure.label:<{width}}  ", style="dim")
        line.append(shown(figure.value, figure.kind), style="bold not dim")
        if figure.note:
            line.append(f"  ({printable(figure.note)})")
        console.print(line)
    for table in report.tables:
        console.print()
        console.print(_rich_table(table))
        rest = len(table.rows) - table.shown
        for text in (f"... and {rest} more rows: see --json or the HTML report" if rest > 0 else "", table.note):
            if text:
                console.print(Text(f"  {text}", style="dim"))
    for title, items in _closing(report):
        console.print()
        console.print(Text(title, style="bold red" if title.startswith("Failed") else "bold"))
        for item in items:
            console.print(Text(f"  {item}", style="cyan" if title == "Next" else ""), soft_wrap=title == "Next")


def _rich_table(table: Table) -> object:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(title=Text(printable(table.title)), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column in table.columns:
        text = column.kind in ("text", "verdict")
        drawn.add_column(Text(column.title), justify="left" if text else "right", overflow="fold")
    for row in table.rows[: table.shown]:
        drawn.add_row(*(Text(shown(v, c.kind)) for v, c in zip(row, table.columns, strict=True)))
    return drawn
