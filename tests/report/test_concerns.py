"""Remarks in three classes: what changes the result comes first, rewrites are counted and listed with -v."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxqat.report import html, terminal
from onnxqat.report.model import Report
from onnxqat.types import Remark

Run = Callable[..., Any]
REPORT = Report(
    kind="test",
    title="Test",
    remarks=(
        Remark("one rewrite", ("a",), "pass-a", "detail"),
        Remark("worth knowing"),
        Remark("the data are few", source="data", concern="result"),
    ),
)


def test_order_and_count() -> None:
    text = terminal.to_text(REPORT)
    assert text.index("What changes your result") < text.index("the data are few") < text.index("worth knowing")
    assert "1 detail of what was done: -v" in text
    assert "one rewrite (a)" not in text
    assert "pass-a: one rewrite (a)" in terminal.to_text(REPORT, details=True)
    page = html.to_html(REPORT)
    assert page.index("the data are few") < page.index("worth knowing") < page.index("one rewrite")


def test_a_command_lists_details_with_v(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from onnxqat.cli import main
    from tests.report.test_model_report import float_model

    model = onnx.load(float_model(tmp_path / "model.onnx"))
    half = onnx.helper.make_tensor("half", onnx.TensorProto.FLOAT, [1], [0.5])
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["half"], "half", value=half))
    model.graph.node.insert(1, onnx.helper.make_node("Add", ["image", "half"], ["more"], "more"))
    model.graph.node[2].input[0] = "more"
    onnx.save(model, tmp_path / "model.onnx")
    arguments = ["insert-qdq", str(tmp_path / "model.onnx"), "--random-data", "--fast", "-o"]
    assert main.run([*arguments, str(tmp_path / "a.onnx")]) == 0
    assert "-v lists" in capsys.readouterr().out
    assert main.run([*arguments, str(tmp_path / "b.onnx"), "-v"]) == 0
    shown = capsys.readouterr().out
    assert "-v lists" not in shown
    assert "Details" in shown
