"""Environments are made whole or not at all, and what stands in the way is said in one line."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from onnxqat.deployment.run import environment
from onnxqat.deployment.run.environment import MARK, Environment
from onnxqat.errors import UsageError

NOW = sys.version_info.minor


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONNXQAT_ENVIRONMENTS", str(tmp_path / "environments"))
    return tmp_path / "environments"


def wheel(folder: Path, version: str) -> Path:
    """A package without code, as pip takes it."""
    path = folder / f"toy_compiler-{version}-py3-none-any.whl"
    info = f"toy_compiler-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: toy-compiler\nVersion: {version}\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")
    return path


def toy(*requirements: str, **changes: object) -> Environment:
    fields: dict[str, object] = {"python": (NOW, NOW), "systems": (environment.system(),)} | changes
    return Environment("toy", "toy-compiler", requirements, **fields)  # type: ignore[arg-type]


@pytest.mark.slow
def test_made_replaced_and_told_from_an_unfinished_one(tmp_path: Path, root: Path) -> None:
    first = toy(str(wheel(tmp_path, "1.0")))
    assert first.version() is None
    assert "onnxqat handoff --install toy" in first.missing().hint
    assert environment.install(first) == root / "toy"
    assert first.version() == "1.0"
    (root / "toy" / MARK).unlink()
    assert first.version() is None
    second = toy(bare=(str(wheel(tmp_path, "2.0")),))
    (root / "toy" / "left-over").write_text("old", encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        environment.install(toy(str(tmp_path / "absent-1.0-py3-none-any.whl")))
    assert caught.value.code == "environment-failed"
    assert "absent" in caught.value.message
    assert second.version() is None
    assert not (root / "toy" / "left-over").exists()


def test_a_step_that_hangs_is_ended() -> None:
    with pytest.raises(UsageError) as caught:
        environment.install(toy("anything"), timeout=0.01)
    assert "did not end within 0.01 s" in caught.value.message


def test_wrong_system_python_and_missing_programs() -> None:
    with pytest.raises(UsageError) as system:
        environment.install(toy(systems=("plan9-mips",)))
    assert f"exists for plan9-mips, and this machine is {environment.system()}" in system.value.message
    with pytest.raises(UsageError) as python:
        environment.install(toy(python=(2, 3)))
    assert f"it needs Python 3.2 to 3.3; this is 3.{NOW}" in python.value.message
    with pytest.raises(UsageError) as program:
        environment.install(toy(programs=("no-such-program",)))
    assert "needs the program no-such-program" in program.value.message


def test_another_python_is_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "python3.3"
    other.write_text("#!/bin/sh\n", encoding="utf-8")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.interpreter_for(toy(python=(2, 3))) == str(other)
    assert environment.interpreter_for(toy()) == sys.executable


def test_the_users_cache_holds_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ONNXQAT_ENVIRONMENTS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert environment.root() == tmp_path / "onnxqat" / "environments"


def test_every_environment_is_pinned_and_found_by_its_compiler() -> None:
    from onnxqat.deployment import base_compiler

    found = [base_compiler.load(name) for name in base_compiler.names()]
    environments = [c.environment for c in found if hasattr(c, "environment")]
    assert {e.name for e in environments} >= {"tensorrt-rtx", "onnxruntime-qnn", "rknn-toolkit2", "imx500", "tract"}
    for each in environments:
        assert environment.of(each.name) is each
        own = next(r for r in (*each.bare, *each.requirements) if r.split("[")[0].split("=")[0] == each.package)
        assert "==" in own
        assert own.partition("==")[2] in each.describe()


def test_a_compiler_without_environment_says_what_to_do() -> None:
    with pytest.raises(UsageError) as caught:
        environment.of("openvino-cpu")
    assert "onnxqat[openvino]" in caught.value.hint


def test_a_folder_that_is_not_ones_own_is_not_removed(root: Path, tmp_path: Path) -> None:
    (root / "toy").mkdir(parents=True)
    (root / "toy" / "photos.jpg").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="is not an environment that onnxqat made"):
        environment.install(toy("anything"))
    assert (root / "toy" / "photos.jpg").exists()
    (root / "toy").rename(tmp_path / "photos")
    (root / "toy").symlink_to(tmp_path / "photos")
    with pytest.raises(UsageError, match="is a link"):
        environment.install(toy("anything"))
    assert (tmp_path / "photos" / "photos.jpg").exists()


def test_an_unfinished_installation_is_removed(root: Path) -> None:
    for _ in range(2):
        with pytest.raises(UsageError, match="did not end within"):
            environment.install(toy("anything"), timeout=0.01)
    assert (root / "toy" / environment.OWN).exists()


def test_the_name_of_a_backend_is_answered_with_its_compiler() -> None:
    with pytest.raises(UsageError, match="backend, not of a compiler") as error:
        environment.of("qnn-htp")
    assert "onnxruntime-qnn" in error.value.hint
    with pytest.raises(UsageError, match="no compiler named 'academic'"):
        environment.of("academic")
