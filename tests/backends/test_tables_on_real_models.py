"""Every table on real networks: a residual one, a depthwise one, and a detector."""

import functools
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxqat.backends import schema
from onnxqat.errors import ModelError
from onnxqat.insertion.insert import insert_qdq
from tests.backends.conformance import violations
from tests.repetitions import pairs

MODELS = ("resnet20_cifar10", "dscnn_kws", "ultraface_rfb_320")
REFUSED = {("qnn-htp-v68", "ultraface_rfb_320")}
"""Models that the table's compiler refuses: boxes that a detector decodes in float, on a chip without float16."""
SMALLEST_SNR = 15.0  # dB; of 4 bits calibrated on random numbers 5


@functools.cache
def source(path: Path) -> onnx.ModelProto:
    return onnx.load(path)


def run(model: onnx.ModelProto) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feeds = {
        i.name: rng.standard_normal([d if isinstance(d, int) else 1 for d in i.shape]).astype(np.float32)
        for i in session.get_inputs()
    }
    return [np.asarray(v) for v in session.run(None, feeds)]


@pytest.mark.parametrize(("table", "name"), pairs(schema.names(), MODELS, pytest.mark.slow))
def test_valid_conforming_and_close(table: str, name: str, shared: Path) -> None:
    model, rows = source(shared / "data" / "models" / f"{name}.onnx"), schema.load(table)
    if (table, name) in REFUSED:
        with pytest.raises(ModelError, match="MEM_ALLOC"):
            insert_qdq(model, table, random_data=True, batch_size=1)
        return
    result = insert_qdq(model, table, random_data=True, batch_size=1)
    onnx.checker.check_model(result.model, full_check=True)
    layers = {"Conv", "ConvTranspose", "Gemm", "MatMul"} & {n.op_type for n in model.graph.node}
    if layers & set(rows.ops):
        left = frozenset(node for node, _ in result.plan.float_nodes)
        assert violations(result.model, rows, left) == []
    least = SMALLEST_SNR if min(t.qtype().bits for t in rows.types.values() if t.observed) > 4 else 5.0
    for expected, found in zip(run(model), run(result.model), strict=True):
        noise = np.square(expected - found).sum()
        assert 10 * np.log10(np.square(expected).sum() / max(noise, 1e-30)) > least
