"""Each rule of a target reads the target's table, finds its defect, and not in a file without it."""

from pathlib import Path

import onnx
import pytest

from onnxqat.lint.lint import lint, rules
from tests.lint.qdq_files import changed, model
from tests.lint.target_cases import ORT, TARGET, TargetCase


def codes(source: onnx.ModelProto, backend: str, folder: Path) -> dict[str, str]:
    if "\n" in backend:
        path = folder / "table.yaml"
        path.write_text(backend, encoding="utf-8")
        backend = str(path)
    return {finding.code: finding.severity for finding in lint(source, backend).findings}


@pytest.mark.parametrize("case", TARGET, ids=lambda case: case.code)
def test_defect_is_found(case: TargetCase, tmp_path: Path) -> None:
    assert case.code in codes(case.bad(), case.backend, tmp_path)


@pytest.mark.parametrize("case", TARGET, ids=lambda case: case.code)
def test_sound_file_is_left_alone(case: TargetCase, tmp_path: Path) -> None:
    assert case.code not in codes(case.good(), case.backend, tmp_path)


def test_every_rule_has_a_case() -> None:
    assert {case.code for case in TARGET} == {rule.code for rule in rules() if rule.target}


def test_without_a_backend_no_target_is_asked() -> None:
    assert not any(finding.code.startswith("target-") for finding in lint(changed(rz=10)).findings)


def test_what_a_target_wants_has_no_findings() -> None:
    assert lint(model(), ORT).findings == ()
