"""Machine: facts that hold wherever the tests run, and what they are taken to mean."""

import dataclasses
from pathlib import Path

import pytest

from onnxqat.diagnosis import machine
from onnxqat.diagnosis.machine import Machine

FINE = Machine("Linux", "a processor", 2, None, 2**34, ("avx2",), False, "/tmp", 2**33, (), False)


def test_this_machine() -> None:
    found = machine.examine()
    assert found.cores >= 1
    assert found.processor
    assert found.free is None or found.free >= 0


def test_nothing_to_say() -> None:
    assert [*FINE.remarks(), *FINE.problems()] == []


@pytest.mark.parametrize(
    ("change", "text"), [({"saturates": True}, "no VNNI"), ({"driver": True}, "torch sees no GPU")]
)
def test_remarks(change: dict[str, bool], text: str) -> None:
    (remark,) = dataclasses.replace(FINE, **change).remarks()
    assert text in remark


@pytest.mark.parametrize(("free", "text"), [(None, "cannot be written"), (2**29, "0.5 GiB are free")])
def test_problems(free: int | None, text: str) -> None:
    (problem,) = dataclasses.replace(FINE, free=free).problems()
    assert text in problem
    assert "TMPDIR" in problem


def test_a_full_folder_of_temporary_files_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.tempfile, "gettempdir", lambda: str(tmp_path))
    assert machine.examine().temporary == str(tmp_path)
