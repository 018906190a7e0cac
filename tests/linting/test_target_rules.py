"""Each rule of a target reads the target's table, finds its defect, and not in a file without it."""

import cProfile
import pstats
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxqat.linting.lint import all_rules, lint
from tests.linting.cases import dynamic, qoperator
from tests.linting.qdq_files import changed, model
from tests.linting.target_cases import ORT, TARGET, TargetCase


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
    assert {case.code for case in TARGET} == {rule.code for rule in all_rules() if rule.target}


def test_without_a_backend_no_target_is_asked() -> None:
    assert not any(finding.code.startswith("target-") for finding in lint(changed(rz=10)).findings)


def test_what_a_target_wants_has_no_findings() -> None:
    assert lint(model(), ORT).findings == ()


def test_a_normalization_that_the_target_needs_written_out_is_named() -> None:
    body = "n = RMSNormalization(x, g) y = MatMul(n, w)"
    constants = {"g": np.ones(4, np.float32), "w": np.ones((4, 2), np.float32)}
    source = model(body, constants, inputs="float[3,4] x", outputs="float[3,2] y", opset=23)
    named = [finding.message for finding in lint(source, "rknn").findings]
    assert any("RMSNormalization" in message for message in named)


def calls_of_lint(outputs: int) -> int:
    names = ", ".join(f"s{i}" for i in range(outputs))
    text = f"m = MatMul(x, w) {names} = Split<axis = 1, num_outputs = {outputs}>(m) y = Relu(s0)"
    wide = model(text, {"w": np.ones((4, outputs), np.float32)}, inputs="float[1,4] x", outputs="float[1,1] y")
    with cProfile.Profile() as profile:
        lint(wide, "onnxruntime-cpu")
    return int(pstats.Stats(profile).total_calls)


def test_work_grows_with_the_number_of_tensors_and_no_faster() -> None:
    calls_of_lint(4)  # tables are read once
    assert calls_of_lint(1600) < 6 * calls_of_lint(400)


@pytest.mark.parametrize("made", [qoperator, dynamic], ids=["operators on codes", "dynamic"])
def test_an_operator_on_codes_does_not_run_in_float(made: Callable[[], onnx.ModelProto]) -> None:
    said = [f.message for f in lint(made(), ORT).findings if f.code == "target-operator-float"]
    assert said
    assert not any("Conv" in message or "DynamicQuantize" in message for message in said)
