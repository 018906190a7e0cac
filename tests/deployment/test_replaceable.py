"""A bundle replaces nothing but a bundle, and none that holds what is read."""

from collections.abc import Callable
from pathlib import Path

import pytest

from onnxqat.deployment.bundle import check_target, digests, write_json, writing
from onnxqat.errors import UsageError


def bundle(folder: Path, text: str = "old") -> Path:
    """A folder as the hand-off leaves it."""
    with writing(folder) as staged:
        (staged / "deep").mkdir()
        (staged / "model.onnx").write_text(text, encoding="utf-8")
        (staged / "deep" / "weights.bin").write_text("w", encoding="utf-8")
        write_json(staged / "manifest.json", {"command": ["onnxqat", "handoff"], "sha256": digests(staged)})
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def add_file(folder: Path) -> str:
    (folder / "deep" / "mine.txt").write_text("mine", encoding="utf-8")
    return "deep/mine.txt"


def add_hidden(folder: Path) -> str:
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("x", encoding="utf-8")
    return ".git/HEAD"


def add_link(folder: Path) -> str:
    (folder.parent / "elsewhere").mkdir()
    (folder / "link").symlink_to("../elsewhere")
    return "link"


def change(folder: Path) -> str:
    (folder / "model.onnx").write_text("changed", encoding="utf-8")
    return "model.onnx"


def another_manifest(folder: Path) -> str:
    write_json(folder / "manifest.json", {"name": "my web app"})
    return "manifest.json"


def a_list_as_manifest(folder: Path) -> str:
    (folder / "manifest.json").write_text("[" * 100_000, encoding="utf-8")
    return "manifest.json"


def no_manifest(folder: Path) -> str:
    (folder / "manifest.json").unlink()
    return "manifest.json"


CHANGES = [add_file, add_hidden, add_link, change, another_manifest, a_list_as_manifest, no_manifest]


@pytest.mark.parametrize("spoil", CHANGES)
@pytest.mark.parametrize("through_a_link", [False, True])
def test_anything_else_is_refused_by_name(spoil: Callable[[Path], str], through_a_link: bool, tmp_path: Path) -> None:
    folder = bundle(tmp_path / "bundle")
    name = spoil(folder)
    before = contents(folder)
    target = folder
    if through_a_link:
        target = tmp_path / "out"
        target.symlink_to("bundle")
    with pytest.raises(UsageError) as caught:
        check_target(target)
    assert name in caught.value.message
    with pytest.raises(UsageError):
        bundle(target, "new")
    assert contents(folder) == before
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


def test_a_file_that_comes_while_the_new_one_is_made_stays(tmp_path: Path) -> None:
    folder = bundle(tmp_path / "bundle")
    with pytest.raises(UsageError, match=r"late\.txt"), writing(folder):
        (folder / "late.txt").write_text("late", encoding="utf-8")
    assert contents(folder).keys() == {"model.onnx", "deep/weights.bin", "manifest.json", "late.txt"}


def test_a_bundle_an_empty_folder_and_nothing_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("bundle", "bundle", "empty"):
        bundle(tmp_path / name, "new")
    assert contents(tmp_path / "bundle") == contents(tmp_path / "empty")
    (tmp_path / "out").symlink_to("bundle")
    bundle(tmp_path / "out", "through a link")
    assert (tmp_path / "out").is_symlink()
    assert contents(tmp_path / "bundle")["model.onnx"] == b"through a link"
