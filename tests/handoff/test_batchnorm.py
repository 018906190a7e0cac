"""A BatchNormalization that was kept for training is in the scales of the layer, in every bundle."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxqat.graph import io, qdq
from onnxqat.handoff.handoff import handoff
from onnxqat.insert import insert_qdq
from onnxqat.lint.lint import lint
from tests.backends.planning import proto
from tests.passes.checks import ort_run
from tests.test_insert_batchnorm import DATA, TEXT


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "qnn-htp", "tensorrt"])
def test_bundle_of_a_kept_batchnorm(backend: str, tmp_path: Path) -> None:
    kept = insert_qdq(proto(TEXT), backend, calibration=DATA, batch_norm="keep").model
    report = handoff(kept, backend, tmp_path / "bundle", data=DATA, trace=False, max_steps=8.0)
    assert report.passed, report.failures
    made = onnx.load(tmp_path / "bundle" / "model.onnx")
    assert "BatchNormalization" not in {n.op_type for n in made.graph.node}
    derived = [q for q in qdq.quantizers(io.load(made)) if q.derived_from is not None]
    assert bool(derived) == (backend != "tensorrt")
    left, right = (ort_run(m, DATA)["logits"] for m in (kept, made))
    # half an accumulator step a channel, and the steps of the activations behind it
    np.testing.assert_allclose(left, right, atol=0.04 * np.abs(left).max())


def test_lint_says_that_it_was_kept() -> None:
    kept = insert_qdq(proto(TEXT), "academic", calibration=DATA, batch_norm="keep").model
    found = [f for f in lint(kept).findings if f.code == "batchnorm-unfolded"]
    assert len(found) == 3
    assert all("kept for training" in f.message for f in found)
