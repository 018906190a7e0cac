"""Names of equalizations: what a user or a table asks for."""

from pathlib import Path

import pytest

from onnxqat import discover
from onnxqat.backends import equalizations, schema
from onnxqat.backends.equalizations import AUTO, ORDER, choices
from onnxqat.errors import BackendError, UsageError
from onnxqat.insertion import weight_choice


def test_names_lists_and_defaults() -> None:
    assert [c.name for c in choices(True)] == list(AUTO)
    assert not any(c.asked for c in choices("auto"))
    assert choices(False) == choices("none") == ()
    (one,) = choices(["cross-layer-equalization"])
    assert (one.name, one.asked) == ("cross-layer-equalization", True)
    both = choices("cross-layer-equalization,auto")
    assert [(c.name, c.asked) for c in both if c.name in ORDER[:2]] == [(ORDER[0], False), (ORDER[1], True)]
    assert choices(True, default=("none",)) == ()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("gptq", "--rounding gptq"),
        ("AdaRound", "onnxqat reconstruct --recipe adaround"),
        ("cle", "--equalize cross-layer-equalization"),
        ("cross-layer", "cross-layer-equalization"),
        ("nonsense", "silu-equalization"),
    ],
)
def test_unknown_names_are_told_where_they_are(asked: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        choices(asked)
    assert said in str(caught.value.hint)


def test_rounding_tells_where_equalizations_are() -> None:
    for asked, said in (("cle", "--equalize cross-layer-equalization"), ("brecq", "--recipe brecq")):
        with pytest.raises(UsageError) as caught:
            weight_choice.chosen(asked, None, schema.load("onnxruntime-cpu"))  # type: ignore[arg-type]
        assert said in str(caught.value.hint)


@pytest.mark.parametrize("asked", [["none", "auto"], "silu-equalization:0.5"])
def test_refused(asked: list[str] | str) -> None:
    with pytest.raises(UsageError, match=r"none goes with|takes no number"):
        choices(asked)


def test_every_name_has_a_file_and_every_file_a_name() -> None:
    found = {name.replace("_", "-") for name in discover.names("onnxqat.equalization.methods")}
    assert found == set(ORDER)
    assert set(AUTO) | set(equalizations.VALUES) <= set(ORDER)


def test_a_table_has_a_default(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    start = "schema: 1\nextends: onnxruntime-cpu\nbackend: mine\ndescription: mine\n"
    file.write_text(start + "equalize: [none]\n")
    assert schema.load(str(file)).equalize == ("none",)
    other = tmp_path / "other.yaml"
    other.write_text(start + "equalize: [nonsense]\n")
    with pytest.raises(BackendError, match=r"equalize.*nonsense"):
        schema.load(str(other))


def test_the_option_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--equalize` without a value is auto, and takes names; `--no-equalize` beside one is refused by choices()."""
    from click.testing import CliRunner

    from onnxqat.cli.commands.insert_qdq import run
    from onnxqat.insertion import insert

    seen: list[object] = []

    def stop(*_: object, equalize: object, **__: object) -> None:
        seen.append(equalize)
        raise UsageError("option-invalid", "seen")

    monkeypatch.setattr(insert, "insert_qdq", stop)
    lines = (
        [],
        ["--equalize"],
        ["--equalize", "--fast"],
        ["--equalize", "awq,smoothquant", "--equalize=auto"],
        ["--no-equalize"],
        ["--equalize", "auto", "--no-equalize"],
    )
    for line in lines:
        CliRunner().invoke(run, ["model.onnx", *line])
    assert seen == [True, ("auto",), ("auto",), ("awq,smoothquant", "auto"), ("none",), ("auto", "none")]
