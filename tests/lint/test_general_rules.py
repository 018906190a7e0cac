"""Each rule for any QDQ file finds its defect, and not in a file without it."""

import pytest

from onnxqat.lint.lint import lint, rules
from tests.lint.cases import GENERAL, Case
from tests.lint.qdq_files import model


def codes(case_model: object) -> set[str]:
    return {finding.code for finding in lint(case_model).findings}  # type: ignore[arg-type]


@pytest.mark.parametrize("case", GENERAL, ids=lambda case: case.code)
def test_defect_is_found(case: Case) -> None:
    assert case.code in codes(case.bad())


@pytest.mark.parametrize("case", GENERAL, ids=lambda case: case.code)
def test_sound_file_is_left_alone(case: Case) -> None:
    assert case.code not in codes(case.good())


def test_every_rule_has_a_case() -> None:
    assert [case.code for case in GENERAL] != []
    assert {case.code for case in GENERAL} == {rule.code for rule in rules() if not rule.target}


def test_a_sound_file_has_no_findings() -> None:
    assert lint(model()).findings == ()


def test_codes_are_stable_words() -> None:
    found = [rule.code for rule in rules()]
    assert len(found) == len(set(found))
    assert all(rule.code.replace("-", "").replace("32", "").isalpha() and rule.code.islower() for rule in rules())
    assert all(rule.code.startswith("target-") == rule.target for rule in rules())


def test_rules_say_what_why_and_what_to_do() -> None:
    for rule in rules():
        assert all((rule.defect, rule.reason, rule.remedy, rule.source)), rule.code
        assert not any(text.endswith(".") for text in (rule.defect, rule.reason, rule.remedy)), rule.code
