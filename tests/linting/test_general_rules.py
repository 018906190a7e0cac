"""Each rule for any QDQ file finds its defect, and not in a file without it."""

import contextlib

import numpy as np
import pytest

from onnxqat.errors import QatError
from onnxqat.graph import io
from onnxqat.linting.lint import all_rules, lint
from tests.linting.cases import GENERAL, Case
from tests.linting.qdq_files import changed, model


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
    assert {case.code for case in GENERAL} == {rule.code for rule in all_rules() if not rule.target}


def test_a_sound_file_has_no_findings() -> None:
    assert lint(model()).findings == ()


def test_codes_are_stable_words() -> None:
    found = [rule.code for rule in all_rules()]
    assert len(found) == len(set(found))
    assert all(rule.code.replace("-", "").replace("32", "").isalpha() and rule.code.islower() for rule in all_rules())
    assert all(rule.code.startswith("target-") == rule.target for rule in all_rules())


def test_rules_say_what_why_and_what_to_do() -> None:
    for rule in all_rules():
        assert all((rule.defect, rule.reason, rule.remedy, rule.source)), rule.code
        assert not any(text.endswith(".") for text in (rule.defect, rule.reason, rule.remedy)), rule.code


def test_the_callers_model_stays() -> None:
    found = model()
    before = found.SerializeToString(deterministic=True)
    lint(found, "onnxruntime-cpu")
    assert found.SerializeToString(deterministic=True) == before
    loaded = io.load(found)
    text = str(loaded)
    lint(loaded)
    assert str(loaded) == text


DAMAGE = ("s", "z", "w", "ws", "wz", "b", "bs", "bz", "rs", "rz")
SHAPES = ((), (1,), (2,), (3,), (0,), (2, 1), (2, 2, 3, 3))
TYPES = (np.float32, np.int8, np.uint8, np.int32, np.float16)


@pytest.mark.parametrize("backend", [None, "onnxruntime-cpu", "qnn-htp", "vitis-dpu"])
def test_damaged_files_are_no_reason_to_stop(backend: str | None) -> None:
    """Constants of any shape, type and value, in place of those of a sound file."""
    rng = np.random.default_rng(5)
    for _ in range(25):
        names = rng.choice(DAMAGE, 2, replace=False)
        constants = {}
        for name in names:
            kind, size = TYPES[rng.integers(len(TYPES))], SHAPES[rng.integers(len(SHAPES))]
            constants[str(name)] = np.full(size, rng.choice([0, 1, -1, 100]), kind)
        with contextlib.suppress(QatError):
            lint(changed(**constants), backend)
