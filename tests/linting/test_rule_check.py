"""``extensions check`` of lint rules names the promise that one breaks, and each of them can be broken."""

from pathlib import Path

import onnx
import pytest

from onnxqat.linting import rule_check
from onnxqat.pipeline.check import parse
from onnxqat.pipeline.examples import EXAMPLES

FILE = """
from onnxqat.extend import Found, Rule
{extra}
def check(file):
    for node in file.nodes:
        if node.op_type == "Relu":
            {body}

RULES = (Rule({words}, check, {fix}),)
"""
WORDS = '"relu-there", "warning", "a Relu", "it is ours", "none", "house"'
GOOD = 'yield Found("a Relu", node=node)'


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "type[Check]":
    residual = parse(EXAMPLES[0])
    monkeypatch.setattr(rule_check, "EXAMPLES", EXAMPLES[:1])
    monkeypatch.setattr(rule_check, "quantized_examples", lambda: (residual,))
    Check.folder = tmp_path
    return Check


class Check:
    folder: Path

    @classmethod
    def broken(cls, body: str = GOOD, words: str = WORDS, fix: str = "None", extra: str = "") -> dict[str, str]:
        path = cls.folder / "mine.py"
        path.write_text(FILE.format(body=body, words=words, fix=fix, extra=extra), encoding="utf-8")
        return {f.name: f.message for f in rule_check.check(str(path)).findings if not f.passed}


def test_a_good_rule(check: type[Check]) -> None:
    assert check.broken() == {}


@pytest.mark.parametrize(
    ("body", "promise", "said"),
    [
        ("1 / 0", "runs", "ZeroDivisionError"),
        ('yield "a Relu"', "places", "a str instead of a Found"),
        ('yield Found("", node=node)', "places", "without a message"),
        ('yield Found("a Relu", tensor="no_such")', "places", "no tensor 'no_such'"),
        ('yield Found("a Relu", node=type(node)("", "Relu", []))', "places", "is not in the file"),
        ('yield Found("a Relu", severity="fatal")', "places", "'fatal' is none of"),
        ('node.name = "seen"; yield Found("a Relu")', "input", "only reads"),
        ('yield Found(f"a Relu at {id(node)}")', "second run", "others on the same model"),
        ("yield from ()", "applies", "finds nothing"),
    ],
)
def test_a_broken_promise(body: str, promise: str, said: str, check: type[Check]) -> None:
    assert said in check.broken(body)[promise]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (WORDS.replace("relu-there", "Relu there"), "joined by hyphens"),
        (WORDS.replace("it is ours", " "), "reason is empty"),
        (WORDS.replace('"warning"', '"fatal"'), "'fatal' is none of"),
        (WORDS.replace("relu-there", "op-never-quantized"), "there is another rule"),
    ],
)
def test_words(words: str, said: str, check: type[Check]) -> None:
    known = rule_check.lint.all_rules()[0]
    found = check.broken(words=words.replace("op-never-quantized", known.code))
    assert said in found["words"]


@pytest.mark.parametrize(
    ("edit", "said"),
    [('"Abs"', "differs by up to"), ('"Selu"', "differs by up to")],
)
def test_a_fix_that_changes_the_function(edit: str, said: str, check: type[Check]) -> None:
    extra = f"def fix(file, places):\n    for place in places:\n        place.node.op_type = {edit}\n"
    assert said in check.broken(fix="fix", extra=extra)["fix"]


def test_a_fix_that_mends_nothing(check: type[Check]) -> None:
    extra = 'def fix(file, places):\n    for place in places:\n        place.node.name = "mended"\n'
    assert "finds as much as before" in check.broken(fix="fix", extra=extra)["fix"]


def test_the_models_are_quantized_too() -> None:
    from onnxqat.insertion.examples import quantized_examples

    assert all(isinstance(model, onnx.ModelProto) for model in quantized_examples())
    assert all("QuantizeLinear" in {node.op_type for node in model.graph.node} for model in quantized_examples()[:2])
