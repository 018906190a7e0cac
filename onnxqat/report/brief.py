"""A report in ten lines, for ``print`` in Python."""

from __future__ import annotations

from onnxqat.counts import counted
from onnxqat.printing import printable
from onnxqat.report.model import Report, shown

LINES = 10
WIDTH = 160


def brief(report: Report) -> str:
    """Return title, verdicts, failures and the first figures; the last line says what is left out."""
    lines = [printable(report.title) + (f": {report.outcome}" if report.outcome else "")]
    lines += [f"  {v.name} {v.status.upper()}: {printable(v.reason)}" for v in report.verdicts]
    lines += [] if report.verdicts else [f"  failed: {printable(text)}" for text in report.failures]
    lines += [f"  {figure.label}: {shown(figure.value, figure.kind)}" for figure in report.figures]
    tables = ", ".join(f"{table.key} ({counted(len(table.rows), 'row')})" for table in report.tables if table.rows)
    last = [f"  tables: {tables}"] if tables else []
    room = LINES - len(last)
    if len(lines) > room:
        lines = [*lines[: room - 1], f"  ... and {len(lines) - room + 1} more lines"]
    return "\n".join(line if len(line) <= WIDTH else line[: WIDTH - 3] + "..." for line in [*lines, *last])
