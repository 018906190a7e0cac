"""YAML in which a key stands twice is refused with its line, and what only looks like it is taken."""

import pytest

from onnxqat import yaml_mappings


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\na: 1", 2),
        ("a:\n  - {b: 1,\n     b: 2}", 3),
        ("yes: 1\ntrue: 2", 2),
        ("1: a\n0x1: b", 2),
        ("'a': 1\n\na: 2", 3),
        ("base: &base {a: 1, a: 2}\nother: {<<: *base}", 1),
        ("? [{a: 1,\n  a: 2}]\n: 1", 2),
    ],
)
def test_doubled_keys(text: str, line: int) -> None:
    with pytest.raises(ValueError, match=f"^line {line}: the key .* is there twice, first in line "):
        yaml_mappings.load(text)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("", None),
        ("a: {b: 1}\nc: {b: 1}", {"a": {"b": 1}, "c": {"b": 1}}),
        ("[{a: 1}, {a: 1}]", [{"a": 1}, {"a": 1}]),
        (
            "a: &one {b: 1}\nc: &two {<<: *one, b: 2}\nd: {<<: *two, b: 3}",
            {"a": {"b": 1}, "c": {"b": 2}, "d": {"b": 3}},
        ),
        ("1: a\n'1': b", {1: "a", "1": "b"}),
    ],
)
def test_keys_of_different_mappings(text: str, content: object) -> None:
    assert yaml_mappings.load(text) == content


def test_errors_begin_with_the_line() -> None:
    with pytest.raises(ValueError, match=r"^line 2: "):
        yaml_mappings.load("a: 1\nb: ]")
    with pytest.raises(ValueError, match=r"^line 2: aliases"):
        yaml_mappings.load("a: &x 1\nb: *x", aliases=False)
