"""``onnxqat backends``: list, show, check, diff."""

from collections.abc import Callable
from pathlib import Path

import pytest

from onnxqat.backends import schema
from tests.cli.conftest import Done

Run = Callable[..., Done]


@pytest.mark.parametrize("arguments", [(), ("list",)])
def test_list(arguments: tuple[str, ...], onnxqat: Run) -> None:
    done = onnxqat("backends", *arguments)
    assert done.status == 0
    assert [line.split()[0] for line in done.out.splitlines()] == schema.names()
    assert "nnie is refused: HiSilicon NNIE quantizes on a logarithmic grid" in done.err


def test_list_for_a_program(onnxqat: Run) -> None:
    found = onnxqat("backends", "list", "--json").json
    assert [table["backend"] for table in found] == schema.names()
    assert found[0]["types"]["act"]["bits"] == 4


def test_show_is_a_table(tmp_path: Path, onnxqat: Run) -> None:
    done = onnxqat("backends", "show", "tensorrt")
    assert done.status == 0
    (tmp_path / "copy.yaml").write_text(done.out)
    assert schema.load(str(tmp_path / "copy.yaml")) == schema.load("tensorrt")
    assert onnxqat("backends", "show", tmp_path / "copy.yaml", "--json").json["backend"] == "tensorrt"


@pytest.mark.parametrize("name", ["tsqat", "experimental"])
def test_show_says_first_what_is_unverified(name: str, onnxqat: Run) -> None:
    lines = onnxqat("backends", "show", name).out.splitlines()
    start = lines.index("# unverified, since nothing public says it:")
    assert [line.split(":")[0] for line in lines[start + 1 : start + 4]] == [
        "#   types.act.symmetric",
        "#   types.act.scale",
        "#   placement",
    ]
    assert onnxqat("backends", "show", name, "--json").json["unverified"] == [
        "placement",
        "types.act.scale",
        "types.act.symmetric",
    ]


def test_a_target_that_can_have_no_table(onnxqat: Run) -> None:
    done = onnxqat("backends", "show", "NNIE".lower())
    assert done.status == 2
    assert "error[backend-unknown]: nnie can have no table: HiSilicon NNIE" in done.err


def test_check_says_what_is_doubtful(tmp_path: Path, onnxqat: Run) -> None:
    (tmp_path / "mine.yaml").write_text(
        "schema: 1\nbackend: mine\nextends: qnn-htp\ntypes: {other: {dtype: int4}}\npassthrough: [Reshape, Add]\n"
        "facts: {ops.Conv.nothing: {source: me, status: inferred}}\n"
    )
    done = onnxqat("backends", "check", tmp_path / "mine.yaml")
    assert done.status == 0
    table = schema.load("qnn-htp")
    counts = f"{len({key.partition('/')[0] for key in table.ops})} operators, {len(table.types) + 1} types"
    assert done.out.startswith(f"mine: {counts}, opset 21 and later\n")
    for text in (
        "types.other is used by no operator",
        "passthrough: Add gives values that its input has not",
        "Add is in ops and in passthrough",
        "facts: there is no ops.Conv.nothing",
        "passthrough has no source",
        "types.other has no source",
    ):
        assert text in done.out
    assert len(onnxqat("backends", "check", tmp_path / "mine.yaml", "--json").json["remarks"]) == 6


def test_check_of_types_that_the_backend_cannot_read(tmp_path: Path, onnxqat: Run) -> None:
    (tmp_path / "mine.yaml").write_text("backend: mine\nextends: rknn\ntypes: {act: {dtype: uint16}}\n")
    done = onnxqat("backends", "check", tmp_path / "mine.yaml")
    assert done.status == 2
    assert "error[backend-opset]: mine reads opset 13 to 19" in done.err


def test_diff(onnxqat: Run) -> None:
    done = onnxqat("backends", "diff", "qnn-htp", "qnn-htp-a16")
    assert done.status == 0
    assert "types.act: {dtype: uint8, symmetric: false} -> {dtype: uint16, symmetric: false}" in done.out.splitlines()
    assert any(line.startswith("ops.Exp: - -> ") for line in done.out.splitlines())
    assert not any(line.startswith("ops.Conv:") for line in done.out.splitlines())
    assert onnxqat("backends", "diff", "snpe", "snpe").out == ""
    assert onnxqat("backends", "diff", "snpe", "ppl-w8a16", "--json").json["opset"] == {
        "first": [13, 25],
        "second": [21, 25],
    }


def test_bits_of_some_nodes(folder: Path, onnxqat: Run) -> None:
    arguments = ("insert-qdq", "model.onnx", "-c", "data.npz", "--backend", "qnn-htp")
    done = onnxqat(*arguments, "--bits-of", "head=8,16", "--explain")
    assert done.status == 0, done.err
    assert "uint16 16 bit" in done.out
    for wrong in ("head", "=8,8", "head=a"):
        assert "error[option-invalid]: --bits-of" in onnxqat(*arguments, "--bits-of", wrong).err
