"""Results show themselves: ten lines, a frame in a notebook, a page, a data frame."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

import onnxqat
from onnxqat.displayed import Displayed
from onnxqat.errors import QatError
from onnxqat.report import brief, frame
from onnxqat.report.model import Column, Figure, Report, Table
from tests.report.test_model_report import float_model
from tests.source_tree import nodes, package_files


def test_every_result_names_a_builder_that_there_is() -> None:
    stated = [
        node.value.value
        for path in package_files()
        for node in nodes(path)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == "displayed_by"
        and isinstance(node.value, ast.Constant)
    ]
    assert len(stated) >= 12
    for place in stated:
        module, _, function = str(place).partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_a_result_prints_shows_and_saves_itself(tmp_path: Path) -> None:
    found = onnxqat.inspect(float_model(tmp_path / "model.onnx"))
    assert isinstance(found, Displayed)
    lines = str(found).splitlines()
    assert len(lines) <= brief.LINES
    assert any(line.startswith("  form: float") for line in lines)
    assert lines[-1].startswith("  tables: ports (2 rows)")
    assert found._repr_html_().startswith("<iframe sandbox ")
    assert "<script" not in found._repr_html_()
    page = found.save_html(tmp_path / "page.html").read_text(encoding="utf-8")
    assert page == found.to_html()
    assert "Inspection(" in repr(found)  # of the data class, as before


def test_a_long_report_says_what_is_left_out() -> None:
    figures = tuple(Figure(f"k{i}", f"figure {i}", i, "count") for i in range(30))
    table = Table("rows", "Rows", (Column("a", "a"),), (("x" * 400,),))
    lines = brief.brief(Report("x", "t" * 400, figures=figures, tables=(table,))).splitlines()
    assert len(lines) == brief.LINES
    assert lines[-2] == "  ... and 23 more lines"
    assert max(map(len, lines)) <= brief.WIDTH


def test_rows_are_those_of_the_table_that_is_asked_for() -> None:
    columns = (Column("a", "a"), Column("b", "b"))
    tables = (Table("none", "None", columns, ()), Table("two", "Two", columns, ((1, 2), (3, 4))))
    report = Report("x", "t", figures=(Figure("k", "k", 5),), tables=tables)
    assert frame.rows(report, None) == frame.rows(report, "two") == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    assert frame.rows(report, "none") == []
    assert frame.rows(Report("x", "t", figures=(Figure("k", "k", 5),)), None) == [{"figure": "k", "value": 5}]
    with pytest.raises(QatError) as refused:
        frame.rows(report, "twoo")
    assert refused.value.code == "name-unknown"
    if importlib.util.find_spec("pandas") is not None:
        assert frame.frame(frame.rows(report, "two"))["b"].tolist() == [2, 4]
