"""Two workers get one folder, and the one that comes second makes nothing."""

from pathlib import Path

import pytest

from tests import once


class Factory:
    def __init__(self, base: Path) -> None:
        base.mkdir(parents=True)
        self._base = base

    def getbasetemp(self) -> Path:
        return self._base


def test_made_once_for_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [Factory(tmp_path / name) for name in ("gw0", "gw1")]
    made: list[Path] = []

    def make(folder: Path) -> None:
        (folder / "file").write_text("text")
        made.append(folder)

    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    found = {once.folder(worker, "shared", make) for worker in workers}  # type: ignore[arg-type]
    assert found == {*made}
    assert len(made) == 1


def test_what_failed_half_way_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    factory = Factory(tmp_path / "gw0")

    def fails(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError

    with pytest.raises(OSError):  # noqa: PT011 - it has no message
        once.folder(factory, "shared", fails)  # type: ignore[arg-type]
    assert [*once.folder(factory, "shared", lambda folder: None).iterdir()] == []  # type: ignore[arg-type]
