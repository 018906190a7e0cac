"""One data model, three views; names from strangers' files do no harm in any of them."""

from __future__ import annotations

import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from onnxqat.printing import printable
from onnxqat.report import html, terminal
from onnxqat.report import json as as_json
from onnxqat.report.model import Column, Figure, LeftFloat, Report, Table, filled, grouped, shown
from onnxqat.types import Remark
from onnxqat.verdict import Verdict

HOSTILE = '<script>alert("1")</script>"><img src=x onerror=y>[bold red]{{ 7*7 }}\x1b[31m\n'


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report(rows: int = 30) -> Report:
    columns = (Column("tensor", "tensor"), Column("sqnr_db", "signal to noise", "decibel", bar=True))
    table = Table("tensors", "Tensors", columns, tuple((f"{HOSTILE}{i}", float(i)) for i in range(rows)), shown=5)
    return Report(
        kind="validate",
        title=f"model {HOSTILE}",
        passed=False,
        figures=(Figure("top1", "top-1", 0.91234, "share", HOSTILE), Figure("noise", "noise", math.inf, "decibel")),
        tables=(table,),
        failures=(f"output {HOSTILE} is wrong",),
        remarks=(Remark(HOSTILE, (HOSTILE,) * 10, "here"),),
        files=(HOSTILE,),
        left_float=(
            LeftFloat(HOSTILE, "no integer kernel"),
            LeftFloat("b", "no integer kernel"),
            LeftFloat("c", "asked"),
        ),
        next_command="onnxqat validate model.onnx",
    )


class Page(HTMLParser):
    """Collects tags, attribute names and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: dict[str, list[str]] = {}
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_escapes_hostile_names() -> None:
    page = Page()
    text = html.to_html(report())
    page.feed(text)
    assert not {"script", "img", "link", "iframe"} & set(page.tags)
    assert not [name for name in page.attributes if name.startswith("on") or name in ("src", "href")]
    assert "http:" not in text
    assert "https:" not in text
    assert "\x1b" not in text
    assert 'alert("1")' in page.text  # as text, whole
    assert "{{ 7*7 }}" in page.text


def test_html_draws_a_bar_for_each_row(tmp_path: Path) -> None:
    page = Page()
    page.feed(html.to_html(report(rows=61)))
    widths = [float(w) for w in page.attributes["width"]][1::2]
    assert widths == [pytest.approx(i / 60 * 100, abs=0.06) for i in range(61)]
    assert "prefers-color-scheme: dark" in html.to_html(report())
    assert html.write_html(report(), tmp_path / "report.html").read_text(encoding="utf-8") == html.to_html(report())


def test_plain_text_is_whole_and_harmless() -> None:
    stream = io.StringIO()
    terminal.show(report(), stream)
    text = stream.getvalue()
    assert text == terminal.to_text(report())
    assert "\x1b" not in text
    assert "FAILED" in text
    assert "91.23%" in text
    assert "exact" in text
    assert sum("dB" in line for line in text.splitlines()) == 30
    assert all(line == line.rstrip() for line in text.splitlines())
    closing = [line for line in text.splitlines() if line in ("Written", "Left in float", "Next")]
    assert closing == ["Written", "Left in float", "Next"]
    assert text.splitlines()[-1] == "  onnxqat validate model.onnx"


def test_one_long_cell_does_not_widen_every_row() -> None:
    """A tensor with 10,000 readers made 700 MB of spaces."""
    columns = (Column("name", "name"), Column("readers", "read by"), Column("rule", "placed by"))
    rows = tuple((f"t{i}", "r, " * (3000 if i == 7 else 2), "rule") for i in range(500))
    text = terminal.to_text(Report("x", "Nothing", tables=(Table("pairs", "Pairs", columns, rows),)))
    assert "r, " * 3000 + "  rule" in text
    assert len(text) < 500 * 150 + 9000


def test_a_terminal_gets_the_first_rows_and_no_foreign_codes() -> None:
    stream = Terminal()
    terminal.show(report(), stream)
    text = stream.getvalue()
    assert "and 25 more rows" in text
    assert "\\x1b[31m" in text
    assert "[bold red]" in text.replace("\n", "")
    assert "onnxqat validate model.onnx" in text


def test_json_has_stable_keys() -> None:
    found = json.loads(as_json.dumps(report(rows=2)))
    assert list(found) == [
        "schema", "kind", "title", "passed", "verdicts", "figures", "tables", "failures", "remarks", "files", "left_float",
        "next_command",
    ]  # fmt: skip
    assert found["figures"] == {"top1": 0.91234, "noise": None}
    assert found["tables"]["tensors"][1] == {"tensor": HOSTILE + "1", "sqnr_db": 1.0}
    assert found["remarks"][0]["source"] == "here"
    assert found["left_float"][2] == {"node": "c", "reason": "asked"}


def test_an_empty_report_says_that_nothing_happened() -> None:
    text = terminal.to_text(Report("x", "Nothing"))
    assert text == "Nothing\n\nWritten\n  nothing\n"
    assert "Left in float\n  nothing\n" in terminal.to_text(Report("x", "Nothing", left_float=()))
    assert "nothing" in html.to_html(Report("x", "Nothing"))


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, "count", "-"),
        (math.nan, "decibel", "-"),
        (math.inf, "decibel", "exact"),
        (31.25, "decibel", "31.2 dB"),
        (0.0, "share", "0.00%"),
        (0.00001, "share", "1.0e-05"),
        (12345, "count", "12,345"),
        (0.123456, "number", "0.1235"),
        (True, "verdict", "passed"),
        (False, "text", "no"),
        ("a\tb", "text", "a\\tb"),
    ],
)
def test_cells(value: object, kind: str, text: str) -> None:
    assert shown(value, kind) == text  # type: ignore[arg-type]


def test_bars_and_groups() -> None:
    assert [filled(v, "decibel") for v in (-3.0, 30.0, math.inf, None, math.nan)] == [0.0, 0.5, 1.0, 0.0, 0.0]
    assert grouped(report().left_float or ())[0][0] == "no integer kernel"
    assert printable("ä\u202eb") == "ä\\u202eb"


def test_rows_must_fit_their_columns() -> None:
    with pytest.raises(ValueError, match="rows of other length"):
        Table("t", "T", (Column("a", "a"),), ((1, 2),))


@pytest.mark.parametrize(("columns", "stacked"), [(60, True), (200, False)])
def test_a_terminal_that_is_too_narrow(columns: int, stacked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    kinds = [Column(f"c{i}", f"figure of kind {i}", "count") for i in range(6)]
    rows = (("a/long/name/of/a/tensor", *range(10**6, 10**6 + 6)),)
    table = Table("t", "Tensors", (Column("tensor", "tensor"), *kinds), rows)
    terminal.show(Report("x", "Title", tables=(table,), remarks=(Remark("word " * 30),)), file := Terminal())
    text = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())
    assert ("figure of kind 5: 1,000,005" in " ".join(text.split())) is stacked
    assert "a/long/name/of/a/tensor" in text
    assert "1,000,003" in text
    assert max(map(len, text.splitlines())) <= columns
    assert all(line.startswith("  ") for line in text.splitlines() if "word" in line)


TWO_RUNS = Table(
    "outputs",
    "Outputs",
    (
        Column("output", "output"),
        Column("run", "run"),
        Column("against", "against"),
        Column("differing_top1", "top-1 differ", "count"),
        Column("max_abs", "largest difference", "number"),
        Column("sqnr_db", "signal to noise", "decibel"),
    ),
    (
        ("logits", "onnxruntime, as written", "float model", 47, 11.84, 5.4),
        ("logits", "torch", "onnxruntime, default", 17, 3.451, 14.0),
    ),
)


@pytest.mark.parametrize("columns", [60, 72, 79, 80, 81, 90, 95, 100, 120])
def test_a_terminal_of_any_width_shows_every_value(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """rich shrinks columns below what they need and cuts the last one off; no width may do that."""
    monkeypatch.setenv("COLUMNS", str(columns))
    file = Terminal()
    terminal.show(Report("validate", "model", tables=(TWO_RUNS,)), file)
    text = file.getvalue()
    assert all(value in text for value in ("47", "11.84", "5.4 dB", "17", "3.451", "14.0 dB"))
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in text.splitlines()) <= columns


def test_verdicts_stand_in_place_of_one_word() -> None:
    verdicts = (
        Verdict("parity", "green", "torch and onnxruntime agree"),
        Verdict("accuracy", "red", f"3 dB {HOSTILE}", "onnxqat finetune model.qdq.onnx"),
    )
    whole = Report("validate", "model", passed=False, verdicts=verdicts)
    file = Terminal()
    terminal.show(whole, file)
    for text in (terminal.to_text(whole), file.getvalue(), html.to_html(whole)):
        assert "FAILED" not in text
        assert "passed" not in text.split("</style>")[-1]
        assert "onnxqat finetune model.qdq.onnx" in text
        assert "<script>" not in html.to_html(whole)
    assert "accuracy  RED" in " ".join(terminal.to_text(whole).split(" ")).replace("   ", "  ")
    assert json.loads(as_json.dumps(whole))["verdicts"][1]["status"] == "red"


def test_a_long_table_in_html_shows_its_first_rows_and_folds_the_others() -> None:
    page = html.to_html(report(rows=30))  # of which 5 are shown
    shown_part, folded = page.split("<details>", 1)
    assert shown_part.count("<tr>") - 1 == 5
    assert "25 more rows" in folded
    assert folded.count("<tr>") - 1 == 25
