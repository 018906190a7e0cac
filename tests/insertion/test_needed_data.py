"""Tables that quantize weights alone need no data, and all others do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxqat
from onnxqat.errors import DataError
from onnxqat.graph import io, qdq
from onnxqat.placement.table_overrides import Overrides
from tests.bridge.integer import networks

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 256] x) => (float[N, 16] y) <float[256, 128] w1, float[128, 16] w2> {
    a = MatMul (x, w1) b = Relu (a) y = MatMul (b, w2) }"""
WEIGHTS = """schema: 1
backend: weights
description: int8 weights of matrix products
opset: [13, 25]
placement: inputs
io: {inputs: float, outputs: float}
types: {wt: {dtype: int8, granularity: channel}}
ops: {MatMul: {in: ["-", wt@-1]}}
"""


def without_data(backend: str, **options: object) -> onnxqat.insertion.insert.InsertResult:
    return onnxqat.insert_qdq(networks.with_weights(TEXT), backend, **options)


def test_weights_alone_need_none_and_are_the_same_with_some() -> None:
    result = without_data("tensorrt-int4")
    assert result.quantizers == {"activation": 0, "weight": 2, "bias": 0}
    assert result.trial is None
    assert any("no data are needed" in remark.message for remark in result.remarks)
    metadata = {p.key: p.value for p in result.model.metadata_props}
    assert metadata["onnxqat.calibration"] == "none"
    assert "onnxqat.data" not in metadata
    data = {"x": np.random.default_rng(0).standard_normal((8, 256)).astype(np.float32)}
    given = onnxqat.insert_qdq(networks.with_weights(TEXT), "tensorrt-int4", data=data)
    scales = [
        {q.tensor: q.qparams.scale for q in qdq.quantizers(io.load(r.model), every=True)} for r in (result, given)
    ]
    for name in ("w1", "w2"):
        np.testing.assert_array_equal(scales[0][name], scales[1][name])


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    table = tmp_path / "weights.yaml"
    table.write_text(WEIGHTS, encoding="utf-8")
    assert without_data(str(table)).quantizers == {"activation": 0, "weight": 2, "bias": 0}
    model = tmp_path / "net.onnx"
    onnx.save(networks.with_weights(TEXT), model)
    onnxqat.insert_qdq(model, str(table))
    assert (tmp_path / "net.qdq.onnx").exists()


def test_activations_and_rounding_need_some() -> None:
    with pytest.raises(DataError, match="ranges of 3 activations") as caught:
        without_data("onnxruntime-cpu")
    assert caught.value.code == "data-missing"
    with pytest.raises(DataError, match="round weights") as caught:
        without_data("tensorrt-int4", rounding="compensated")
    assert caught.value.code == "data-missing"
    nothing = without_data("onnxruntime-cpu", overrides=Overrides(exclude=("*",)))
    assert sum(nothing.quantizers.values()) == 0
