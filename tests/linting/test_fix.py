"""What --fix mends is gone afterwards, and the numbers are those of before."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxqat.errors import UsageError
from onnxqat.graph import io
from onnxqat.linting.lint import all_rules, lint
from tests.linting.cases import GENERAL, Case
from tests.linting.qdq_files import changed, model
from tests.linting.target_cases import OLD
from tests.passes.checks import ort_run, random_feeds

FIXABLE = {rule.code for rule in all_rules() if rule.fix is not None and not rule.target}
CASES = [case for case in GENERAL if case.code in FIXABLE]
# the bias moves by half a step of its accumulator; a moved tensor is no longer rounded a second time
TOLERANCE = {"bias-scale": 0.5 * 0.05 * 0.01 + 0.0625, "moved-grid": 0.06}
REFUSED = {"opset-too-low", "node-name-repeated"}  # what onnxruntime does not run before


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_fix(case: Case, tmp_path: Path) -> None:
    bad, fixed = case.bad(), tmp_path / "fixed.onnx"
    kept = bad.SerializeToString(deterministic=True)
    report = lint(bad, fix=True, output=fixed)
    assert bad.SerializeToString(deterministic=True) == kept
    assert report.output == str(fixed)
    assert report.fixed[case.code] >= 1
    assert case.code not in {finding.code for finding in report.findings}
    mended = onnx.load(fixed)
    onnx.checker.check_model(mended, full_check=True)
    feeds = random_feeds(mended, 0)
    after = ort_run(mended, feeds)
    if case.code in REFUSED:
        return
    for name, expected in ort_run(bad, feeds).items():
        np.testing.assert_allclose(after[name], expected, rtol=0, atol=TOLERANCE.get(case.code, 0.0))


def test_a_bias_that_no_accumulator_holds_is_left(tmp_path: Path) -> None:
    bad = changed(bs=np.asarray([1e-3, 3e38], np.float32))
    report = lint(bad, fix=True, output=tmp_path / "fixed.onnx")
    message = next(f.message for f in report.findings if f.code == "bias-scale")
    assert "e+41 times" in message
    assert "bias-scale" not in report.fixed


def test_nothing_is_written_where_there_is_nothing_to_mend(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(), path)
    report = lint(path, fix=True)
    assert report.output is None
    assert report.fixed == {}
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


def test_the_fixed_file_lies_beside_the_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(next(c for c in CASES if c.code == "quantize-unused").bad(), path)
    before = path.read_bytes()
    assert lint(path, fix=True).output == str(tmp_path / "model.fixed.onnx")
    assert path.read_bytes() == before


def test_a_second_fix_does_nothing(tmp_path: Path) -> None:
    for case in CASES:
        path = tmp_path / f"{case.code}.onnx"
        lint(case.bad(), fix=True, output=path)
        assert lint(path, fix=True).fixed == {}, case.code


def test_what_has_no_mechanical_remedy_is_left() -> None:
    report = lint(changed(s=np.float32(0)), fix=True, output="unwritten.onnx")
    assert report.fixed == {}
    assert "scale-zero" in {finding.code for finding in report.findings}


def test_an_old_file_goes_to_the_opset_that_the_target_reads(tmp_path: Path) -> None:
    table = tmp_path / "table.yaml"
    table.write_text(OLD.replace("[13, 19]", "[19, 21]"), encoding="utf-8")
    old = model(opset=17)
    report = lint(old, str(table), fix=True, output=tmp_path / "new.onnx")
    assert report.fixed == {"target-opset": 1}
    raised = io.load(tmp_path / "new.onnx")
    assert raised.opset_imports[""] == 19
    feeds = random_feeds(old, 0)
    np.testing.assert_array_equal(ort_run(onnx.load(tmp_path / "new.onnx"), feeds)["y"], ort_run(old, feeds)["y"])


def test_a_new_file_goes_as_low_as_its_operators_allow(tmp_path: Path) -> None:
    new = onnx.shape_inference.infer_shapes(model(opset=22))
    (found,) = [f for f in lint(new, "rknn").findings if f.code == "target-opset"]
    assert found.severity == "note"
    lint(new, "rknn", fix=True, output=tmp_path / "low.onnx")
    assert io.load(tmp_path / "low.onnx").opset_imports[""] <= 19
    feeds = random_feeds(new, 0)
    np.testing.assert_array_equal(ort_run(onnx.load(tmp_path / "low.onnx"), feeds)["y"], ort_run(new, feeds)["y"])


def test_a_model_in_memory_needs_an_output() -> None:
    with pytest.raises(UsageError, match="needs a file"):
        lint(model(), fix=True)
