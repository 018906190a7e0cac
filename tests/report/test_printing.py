"""Nothing that is printed steers the terminal, wherever it comes from."""

import ast
import dataclasses
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxqat import printing
from onnxqat.cli import main
from onnxqat.report import terminal
from onnxqat.report.model import Column, Figure, LeftFloat, Report, Table
from onnxqat.types import Remark
from onnxqat.verdict import Verdict
from tests.source_tree import module_name, nodes, package_files

EVIL = "\x1b]0;title\x07\x1b[31mred\r\n error[ok]: \u202eright"
PRINTS = {"onnxqat.printing", "onnxqat.report.terminal", "onnxqat.cli._options"}  # the last two: through rich


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def is_clean(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text) and "\n error[ok]" not in text


def report() -> Report:
    """A report in which every text is hostile."""
    column = Column("key", EVIL)
    return Report(
        "check",
        EVIL,
        False,
        (Figure("key", EVIL, EVIL, note=EVIL),),
        (Table("key", EVIL, (column,), ((EVIL,),), note=EVIL),),
        (EVIL,),
        (Remark(EVIL, (EVIL,), EVIL),),
        (EVIL,),
        (LeftFloat(EVIL, EVIL),),
        EVIL,
        (Verdict("accuracy", "red", EVIL, EVIL),),
        {EVIL: EVIL},
    )


def test_every_text_of_a_report() -> None:
    assert all(getattr(report(), field.name) for field in dataclasses.fields(Report) if field.name != "passed")
    assert is_clean(terminal.to_text(report()))
    for stream, strip in ((io.StringIO(), False), (Terminal(), True)):
        terminal.show(report(), stream)
        text = stream.getvalue()
        assert "\\x1b]0;title\\x07" in text.replace("\n", "")
        if strip:  # colours of our own
            text = re.sub(r"\x1b\[[\d;]*m", "", text)
        assert is_clean(text)


def test_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("No" + EVIL, ["x"], ["y"], EVIL)],
            "g",
            [onnx.helper.make_tensor_value_info("x", 1, [1])],
            [onnx.helper.make_tensor_value_info("y", 1, None)],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
    )
    path = tmp_path / "\x1b[31mname.onnx"
    path.write_bytes(model.SerializeToString())
    for command in ("inspect", "lint", "insert-qdq"):
        assert main.run([command, str(path)]) == 2
        seen = capsys.readouterr()
        assert is_clean(seen.err)
        assert len(seen.err.splitlines()) <= 2
        assert is_clean(seen.out)


def test_lines_and_tabs_stay(capsys: pytest.CaptureFixture[str]) -> None:
    printing.echo("a\tb\n\x1b[2Jc")
    printing.echo("d", err=True)
    assert capsys.readouterr() == ("a\tb\n\\x1b[2Jc\n", "d\n")


def _prints(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    return called in ("print", "click.echo", "click.secho", "Console", "sys.stdout.write", "sys.stderr.write")


def test_one_place_prints() -> None:
    others = [
        f"{module_name(path)}:{getattr(node, 'lineno', 0)}"
        for path in package_files()
        for node in nodes(path)
        if _prints(node)
    ]
    # Programs of their own, which others read.
    read = ("onnxqat.deployment.scripts.", "onnxqat.deployment.run.guard:", "onnxqat.isolation.child:")
    assert {o.split(":")[0] for o in others if not o.startswith(read)} <= PRINTS


def test_echo_is_given_only_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that the shell closed is None."""
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", None)
    check: Callable[..., Any] = printing.echo
    check("nothing")
    check("nothing", err=True)
