"""Every error code is explained, and nothing is explained that does not exist."""

import pickle
import re
from pathlib import Path

import pytest

from onnxqat import errors


def sections(repository: Path) -> dict[str, str]:
    """Text of each section of the errors page, by heading."""
    text = (repository / "docs" / "errors.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return {heading.strip(): body for heading, body in zip(parts[1::2], parts[2::2], strict=True)}


def test_codes_and_sections_are_the_same(repository: Path) -> None:
    assert set(sections(repository)) == set(errors.ERROR_CODES)
    assert len(set(errors.ERROR_CODES)) == len(errors.ERROR_CODES)


@pytest.mark.parametrize("code", errors.ERROR_CODES)
def test_section_has_cause_and_remedy(code: str, repository: Path) -> None:
    body = sections(repository)[code]
    assert re.search(r"^\*\*Cause\.\*\* \S", body, flags=re.MULTILINE)
    assert re.search(r"^\*\*Remedy\.\*\* \S", body, flags=re.MULTILINE)


def test_codes_are_lower_case_words() -> None:
    assert [code for code in errors.ERROR_CODES if not re.fullmatch(r"[a-z]+(-[a-z]+)+", code)] == []


def test_error_tells_what_and_what_to_do() -> None:
    error = errors.ModelError("model-empty", "the file m.onnx is empty", hint="export it again")
    assert str(error) == "the file m.onnx is empty [model-empty] (export it again)"
    assert str(errors.QatError("model-empty", "nothing")) == "nothing [model-empty]"


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.ModelError, 2),
        (errors.DataError, 2),
        (errors.BackendError, 2),
        (errors.UsageError, 2),
        (errors.UnsupportedError, 2),
        (errors.CheckError, 1),
    ],
)
def test_exit_status(kind: type[errors.QatError], status: int) -> None:
    assert kind("option-invalid", "no").exit_status == status


def test_error_survives_a_process_boundary() -> None:
    error = pickle.loads(pickle.dumps(errors.DataError("data-shape", "wrong", hint="resize")))
    assert type(error) is errors.DataError
    assert (error.code, error.message, error.hint) == ("data-shape", "wrong", "resize")
