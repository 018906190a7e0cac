"""A BatchNormalization that was kept for training is in the scales of the layer, in every bundle."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxqat.deployment.fold_batchnorm import fold_batchnorm
from onnxqat.deployment.handoff import handoff
from onnxqat.errors import UsageError
from onnxqat.graph import io, qdq
from onnxqat.insertion.insert import insert_qdq
from onnxqat.linting.lint import lint
from tests.backends.planning import proto
from tests.passes.checks import ort_run
from tests.test_insert_batchnorm import DATA, TEXT


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "qnn-htp", "tensorrt"])
def test_bundle_of_a_kept_batchnorm(backend: str, tmp_path: Path) -> None:
    kept = insert_qdq(proto(TEXT), backend, data=DATA, batch_norm="keep").model
    report = handoff(kept, backend, tmp_path / "bundle", data=DATA, trace=False, tolerance_lsb=8.0)
    assert not report.failures
    made = onnx.load(tmp_path / "bundle" / "model.onnx")
    assert "BatchNormalization" not in {n.op_type for n in made.graph.node}
    derived = [q for q in qdq.quantizers(io.load(made)) if q.derived_from is not None]
    assert bool(derived) == (backend != "tensorrt")
    left, right = (ort_run(m, DATA)["logits"] for m in (kept, made))
    # half an accumulator step a channel, and the steps of the activations behind it
    np.testing.assert_allclose(left, right, atol=0.04 * np.abs(left).max())


def test_lint_says_that_it_was_kept() -> None:
    kept = insert_qdq(proto(TEXT), "academic", data=DATA, batch_norm="keep").model
    found = [f for f in lint(kept).findings if f.code == "batchnorm-unfolded"]
    assert len(found) == 3
    assert all("kept for training" in f.message for f in found)


def test_the_command_writes_a_file_that_can_be_trained_on(tmp_path: Path) -> None:
    source = tmp_path / "kept.onnx"
    insert_qdq(proto(TEXT), "academic", data=DATA, batch_norm="keep", output=source)
    result = fold_batchnorm(source)
    assert (result.count, result.left) == (3, 0)
    assert result.model == tmp_path / "kept.folded.onnx"
    quantizers = qdq.quantizers(io.load(result.model))
    assert sum(q.derived_from is not None for q in quantizers) == 3
    assert not any(q.stored for q in quantizers if q.role == "weight")


@pytest.mark.parametrize(("backend", "derived", "grids"), [("tensorrt", 0, 3), ("academic", 3, 0)])
def test_a_backend_decides_about_biases(backend: str, derived: int, grids: int) -> None:
    kept = insert_qdq(proto(TEXT), "academic", data=DATA, batch_norm="keep").model
    model = io.load(fold_batchnorm(kept, backend=backend).model)
    assert sum(q.derived_from is not None for q in qdq.quantizers(model)) == derived
    assert sum(qdq.BIAS_GRID in node.metadata_props for node in model.graph) == grids


def test_without_any_the_model_is_what_it_was() -> None:
    plain = insert_qdq(proto(TEXT), "academic", data=DATA).model
    result = fold_batchnorm(plain)
    assert (result.count, result.left, result.remarks) == (0, 0, ())
    with pytest.raises(UsageError, match="there is no bias"):
        fold_batchnorm(plain, bias="int8")  # type: ignore[arg-type]
