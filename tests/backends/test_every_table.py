"""Every table on every kind of model: a valid file that runs, that obeys the table, and that computes about the same."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxqat.backends import schema
from onnxqat.insertion.insert import InsertResult, insert_qdq
from tests.backends import small_models
from tests.backends.conformance import violations
from tests.repetitions import pairs

TABLES = schema.names()
MODELS = list(small_models.TEXTS)
SMALLEST_SNR = 12.0  # dB; far below it something is wrong, not coarse


@functools.cache
def made(table: str, name: str) -> InsertResult:
    return insert_qdq(small_models.model(name), table, data=small_models.batches(name), batch_size=1, equalize=False)


def run(model: onnx.ModelProto, name: str, session: dict[str, str], *, optimize: bool) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    for key, value in session.items():
        options.add_session_config_entry(key, value)
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    made = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [np.asarray(v) for v in made.run(None, {"x": small_models.batches(name)["x"][:1]})]


def snr(reference: np.ndarray, other: np.ndarray) -> float:
    noise = float(np.square(reference - other).sum())
    return 10 * np.log10(float(np.square(reference).sum()) / noise) if noise else np.inf


@pytest.mark.parametrize(("table", "name"), pairs(TABLES, MODELS))
def test_the_file_is_valid_and_obeys_the_table(table: str, name: str) -> None:
    result = made(table, name)
    onnx.checker.check_model(result.model, full_check=True)
    left = frozenset(node for node, _ in result.plan.float_nodes)
    rows = schema.load(table)
    layers = {"Conv", "ConvTranspose", "Gemm", "MatMul"} & {n.op_type for n in small_models.model(name).graph.node}
    if rows.dynamic_activations and "Gemm" in layers:
        layers.add("MatMul")  # which its prepared graph has instead
    if not layers & set(rows.ops):  # a table for transformers and a network of convolutions, or the other way round
        assert table in ("tensorrt-nlp", "onnxruntime-dynamic", "mnn") or table.endswith("-int4")
        assert not any(result.quantizers.values())
        return
    reasons = [reason for _, reason in result.plan.float_nodes if "full blocks" in reason]
    if reasons and not any(result.quantizers.values()):  # no layer is as wide as a block that the compiler takes
        assert any(t.whole_blocks for t in rows.types.values())
        return
    assert violations(result.model, rows, left) == []


@pytest.mark.parametrize(("table", "name"), pairs(TABLES, MODELS))
def test_the_file_runs_and_computes_about_the_same(table: str, name: str) -> None:
    rows, result = schema.load(table), made(table, name)
    expected = run(small_models.model(name), name, {}, optimize=True)
    session = rows.session if table.startswith("onnxruntime") else {}
    found = run(result.model, name, session, optimize=False)
    least = SMALLEST_SNR if min(t.qtype().bits for t in rows.types.values() if t.observed) > 4 else 3.0
    for reference, other in zip(expected, found, strict=True):
        assert np.isfinite(other).all()
        assert snr(reference, other) > least
    # onnxruntime 1.32 fuses a Clip with a float8 QuantizeLinear and throws
    if not any(t.is_float for t in rows.types.values()):
        optimized = run(result.model, name, session, optimize=True)
        assert all(np.isfinite(other).all() for other in optimized)
        if any(t.reduce_range for t in rows.types.values()):  # others saturate on CPUs without VNNI
            assert all(snr(r, o) > least for r, o in zip(expected, optimized, strict=True))
