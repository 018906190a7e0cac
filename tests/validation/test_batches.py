"""Batches of what compares models: small enough for memory, and nothing else changes by that."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxqat
from onnxqat.calibration import batch_size
from onnxqat.graph import io
from onnxqat.validation.check_inputs import open_data
from onnxqat.validation.profile import profile
from onnxqat.validation.simulate import simulate
from onnxqat.validation.validate import validate

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 3, 8, 8] x) => (float[N, 3, 8, 8] y) <float[3, 3, 1, 1] w = {0.5, -0.2, 0.3, 0.1, 0.7, -0.4, 0.2, 0.3, 0.6}> {
    c = Conv(x, w) r = Relu(c) s = Conv(r, w) y = Relu(s) }"""
SAMPLE = 5 * 3 * 8 * 8 * 4
"""Bytes of its tensors for one sample."""


@pytest.fixture
def models() -> tuple[onnx.ModelProto, onnx.ModelProto, np.ndarray]:
    data = np.random.default_rng(4).normal(size=(12, 3, 8, 8)).astype(np.float32)
    plain = onnx.parser.parse_model(TEXT)
    made = onnxqat.insert_qdq(plain, backend="onnxruntime-cpu", data={"x": data})
    return plain, made.model, data


def test_batches_fit_into_memory_where_the_file_states_no_inner_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"x": np.zeros((12, 3, 8, 8), np.float32)}
    model = io.load(onnx.parser.parse_model(TEXT))
    assert open_data(model, data, None, None, None, random_data=False).sizes == [12]
    monkeypatch.setattr(batch_size, "BYTES", 5 * SAMPLE)
    assert open_data(model, data, None, None, None, random_data=False).sizes == [5, 5, 2]
    assert open_data(model, data, None, 3, None, random_data=False).sizes == [3, 3, 3, 3]


def test_results_are_those_of_whole_batches(
    models: tuple[onnx.ModelProto, onnx.ModelProto, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, quantized, data = models
    calls: list[int | None] = []

    def runs() -> tuple[list[object], list[float]]:
        """What is counted, and what is summed up in floats."""
        checked = validate(plain, quantized, {"x": data}, progress=lambda _, total: calls.append(total))
        simulated, profiled = simulate(quantized, {"x": data}), profile(plain, quantized, {"x": data})
        counted: list[object] = [(o.samples, o.unequal, o.elements, o.max_abs) for o in checked.outputs]
        counted += [
            (q.elements, q.differing_in_network, q.differing_in_integers, q.saturated) for q in checked.quantizers
        ]
        counted += [(v.name, v.status) for v in checked.verdicts]
        counted += [(o.values, o.differing) for o in simulated.outputs]
        counted += [(layer.tensor, layer.largest) for layer in simulated.layers]
        counted += [(t.tensor, t.all_steps) for t in profiled.tensors]
        return counted, [*(o.sqnr_db for o in checked.outputs), *(t.all_db for t in profiled.tensors)]

    counted, summed = runs()
    monkeypatch.setattr(batch_size, "BYTES", 5 * SAMPLE)
    counted_in_parts, summed_in_parts = runs()
    assert (calls[0], calls[-1]) == (1, 3)
    assert counted == counted_in_parts
    np.testing.assert_allclose(summed, summed_in_parts, rtol=1e-12)  # sums in float64, in another order
