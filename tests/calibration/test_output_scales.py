"""Scales of narrow weights are tried by the error at the layer's output."""

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxqat
from onnxqat import numerics
from onnxqat.calibration import output_scales
from onnxqat.calibration.gptq import Solver
from onnxqat.calibration.weights import weight_qparams
from onnxqat.graph import io, qdq
from onnxqat.placement.table_overrides import Overrides
from onnxqat.types import FloatArray, QParams, QType, TensorSpec

FOUR = QType.of(4, signed=True, storage="int8")


def layer(block: int | None) -> tuple[FloatArray, QParams, Solver]:
    """Filters (M, D) of neighbours that go together, with the grid of their own error."""
    rows = np.random.default_rng(0).standard_normal((20, 24)).astype(np.float32)
    apart = np.abs(np.subtract.outer(np.arange(24), np.arange(24)))
    where = (
        {"granularity": "channel", "axis": 0}
        if block is None
        else {"granularity": "block", "axis": 1, "block_size": block}
    )
    spec = TensorSpec(FOUR, observer="mse", role="weight", **where)  # type: ignore[arg-type]
    return rows, weight_qparams(rows, spec), Solver(0.9**apart)


@pytest.mark.parametrize("block", [None, 8])
def test_the_best_scales_have_less_error(block: int | None) -> None:
    rows, grid, solver = layer(block)
    spread = np.broadcast_to(numerics.spread(grid.scale, grid, rows.shape), rows.shape)
    given, low, high = rows.astype(np.float64), np.full(rows.shape, -8.0), np.full(rows.shape, 7.0)
    errors = [
        solver.costs(given - solver.codes(given, scale, low, high) * scale)
        for scale in (spread.astype(np.float64), *output_scales.tried(grid, solver, given, spread, low, high))
    ]
    assert np.min(errors, axis=0).mean() < 0.9 * errors[0].mean()


@pytest.mark.parametrize(("axis", "block"), [(0, None), (1, None), (0, 3), (1, 8)])
def test_scales_of_weights_are_those_of_their_grid(axis: int, block: int | None) -> None:
    size = (6, 10)
    shape = tuple(-(-n // block) if block and i == axis else n for i, n in enumerate(size)) if block else (size[axis],)
    grid = QParams(np.ones(shape, np.float32), np.zeros(shape, np.int64), FOUR, axis, None, block)
    wanted = np.random.default_rng(0).uniform(1, 2, shape).astype(np.float32)
    spread = np.broadcast_to(numerics.spread(wanted, grid, size), size)
    found = output_scales.with_scales(grid, spread)
    np.testing.assert_array_equal(found.scale, wanted)
    assert (found.axis, found.block_size) == (axis, block)


def test_scales_that_are_restricted_stay_what_they_are() -> None:
    """Powers of two have no neighbours within the factors; a bias that would leave int32 keeps its scale; wide grids stay."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[N, 24] x) => (float[N, 20] y) { y = Gemm <transB = 1> (x, w, b) }"""
    model = onnx.parser.parse_model(text)
    rows, _, _ = layer(None)
    bias = np.full(20, 1e8, np.float32)
    model.graph.initializer.extend([onnx.numpy_helper.from_array(rows, "w"), onnx.numpy_helper.from_array(bias, "b")])
    mixed = np.cumsum(np.random.default_rng(1).standard_normal((64, 24)), axis=1).astype(np.float32)
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    plain.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.zeros(20, np.float32), "b"))

    def scales(model: onnx.ModelProto, backend: str, bits: int, rounding: str) -> FloatArray:
        made = onnxqat.insert_qdq(
            model,
            backend,
            data={"x": mixed},
            overrides=Overrides(weight_bits=bits),
            rounding=rounding,  # type: ignore[arg-type]
            guard=False,
        ).model
        found = next(q for q in qdq.quantizers(io.load(made), every=True) if q.tensor == "w")
        return found.qparams.scale

    for given, backend, bits in ((plain, "vitis-dpu", 4), (model, "onnxruntime-cpu", 4), (plain, "onnxruntime-cpu", 8)):
        both = [scales(given, backend, bits, rounding) for rounding in ("nearest", "gptq")]
        np.testing.assert_array_equal(both[0], both[1])
    both = [scales(plain, "onnxruntime-cpu", 4, rounding) for rounding in ("nearest", "gptq")]
    assert (both[0] != both[1]).any()


@pytest.mark.parametrize(("bits", "single", "is_other"), [(8, 3, True), (8, 2, True), (3, 8, False), (2, 8, False)])
def test_single_layers_of_few_bits_get_other_scales_too(bits: int, single: int, *, is_other: bool) -> None:
    """Where most layers have so few bits, training follows and learns them."""
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 24] x) => (float[N, 24] y) { h = MatMul(x, a)  k = MatMul(h, b)  y = MatMul(k, c) }"""
    model, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
    for node, name in zip(model.graph.node, "abc", strict=True):
        node.name = f"of_{name}"
        weight = rng.standard_normal((24, 24)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    mixed = np.cumsum(rng.standard_normal((64, 24)), axis=1).astype(np.float32)
    few = "b" if single < bits else "a"

    def scales(rounding: str) -> FloatArray:
        made = onnxqat.insert_qdq(
            model,
            data={"x": mixed},
            overrides=Overrides(weight_bits=bits, node_bits=(("of_b", single, 8),)),
            rounding=rounding,  # type: ignore[arg-type]
            equalize=False,
            guard=False,
        ).model
        return next(q for q in qdq.quantizers(io.load(made), every=True) if q.tensor == few).qparams.scale

    assert (scales("nearest") != scales("gptq")).any() == is_other
