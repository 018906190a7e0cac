"""Rounding that makes up for errors, with the BatchNormalization of the layer kept: what is folded later has the same codes."""

import numpy as np
import onnx
import pytest

from onnxqat.deployment.fold_batchnorm import fold_batchnorm
from onnxqat.graph import folded_batchnorm, io
from onnxqat.insertion.insert import insert_qdq
from onnxqat.placement.table_overrides import Overrides
from tests.backends.planning import proto
from tests.calibration.test_rounding import constants, correlated
from tests.passes.checks import ort_run

WEIGHT = np.random.default_rng(1).normal(size=64).astype(np.float32)
TEXT = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[N,16,6,6] x) => (float[N,4,6,6] y)
<float[4] g = {{2, -1.5, 0, 0.5}}, float[4] b = {{0.5, 1, -1, 0.25}}, float[4] m = {{0.5, 0, -1, 0.1}}, float[4] v = {{4, 1, 0.25, 2}},
 float[4,16,1,1] w = {{{", ".join(f"{value:.6f}" for value in WEIGHT)}}}> {{
    ["layer"] s = Conv(x, w) y = BatchNormalization(s, g, b, m, v) }}"""
DATA = {"x": correlated(32, 16, 0)}


def inserted(backend: str, rounding: str, batch_norm: str = "keep") -> onnx.ModelProto:
    overrides = Overrides(weight_bits=4, activation_bits=8, first_last_bits=4)
    made = insert_qdq(
        proto(TEXT),
        backend,
        data=DATA,
        overrides=overrides,
        rounding=rounding,
        batch_norm=batch_norm,
        guard=False,
    )
    return made.model


def error(model: onnx.ModelProto) -> np.ndarray:
    """Of each channel, on inputs that calibration has not seen."""
    feeds = {"x": correlated(64, 16, 5)}
    return np.asarray(ort_run(proto(TEXT), feeds)["y"] - ort_run(model, feeds)["y"])


def test_a_normalization_behind_the_layer_takes_up_the_mean() -> None:
    nearest, chosen = (inserted("academic", rounding) for rounding in ("nearest", "compensated"))
    assert "BatchNormalization" in {node.op_type for node in chosen.graph.node}
    assert np.square(error(chosen)).mean() < 0.95 * np.square(error(nearest)).mean()
    moved = [name for name, value in constants(chosen).items() if not np.array_equal(value, constants(nearest)[name])]
    assert sorted(moved) == ["m", "w", "w_scale"]
    # As good as what is folded before it is rounded; scales are not the same.
    folded = inserted("academic", "compensated", "fold")
    assert np.square(error(chosen)).mean() < 1.5 * np.square(error(folded)).mean()


@pytest.mark.parametrize("backend", ["tidl", "vitis-dpu"])
def test_one_that_the_graph_computes_has_the_codes_of_the_folded_layer(backend: str) -> None:
    chosen, folded = (inserted(backend, "compensated", batch_norm) for batch_norm in ("keep", "fold"))
    assert len(folded_batchnorm.every(io.load(chosen))) == 1
    stored = fold_batchnorm(chosen)
    assert stored.left == 0
    outputs = [ort_run(model, DATA)["y"] for model in (chosen, stored.model, folded)]
    np.testing.assert_array_equal(outputs[0], outputs[1])
    np.testing.assert_array_equal(outputs[1], outputs[2])
    nearest = inserted(backend, "nearest")
    assert np.square(error(chosen)).mean() < np.square(error(nearest)).mean()
    # A gamma of 0 leaves the weight of its channel as it is.
    np.testing.assert_array_equal(constants(chosen)["w"][2], constants(nearest)["w"][2])
