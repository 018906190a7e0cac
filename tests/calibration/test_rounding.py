"""Rounding on data: inputs as Conv sees them, less error at the output, weights near the float ones."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import onnxqat
from onnxqat import numerics
from onnxqat.calibration import gptq
from onnxqat.calibration.columns import columns_of, filters_of, weight_of
from onnxqat.calibration.gptq import Solver
from onnxqat.calibration.moments import Moments
from onnxqat.errors import UsageError
from onnxqat.placement.table_overrides import Overrides
from onnxqat.types import QParams, QType
from tests.passes.checks import ort_run


def convolution(weight: np.ndarray, size: tuple[int, ...], *, bias: bool = True, **attributes: Any) -> onnx.ModelProto:
    """One Conv, whose input has `size` behind the batch."""
    held = {"w": weight.astype(np.float32)}
    if bias:
        held["b"] = np.linspace(-1, 1, len(weight)).astype(np.float32)
    node = helper.make_node("Conv", ["x", *held], ["y"], name="conv", **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", *size])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("shape", "size", "attributes"),
    [
        ((4, 3, 3, 3), (3, 8, 9), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
        ((4, 1, 3, 3), (4, 8, 9), {"group": 4, "dilations": [2, 1]}),
        ((6, 2, 1, 1), (6, 5, 5), {"group": 3}),
        ((2, 3, 4), (3, 11), {"auto_pad": "SAME_UPPER", "strides": [3]}),
        ((2, 3, 2, 3), (3, 7, 8), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
        ((2, 3, 2, 2, 2), (3, 4, 4, 4), {"auto_pad": "VALID"}),
    ],
)
def test_columns_times_filters_is_the_convolution(
    shape: tuple[int, ...], size: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    """All places are looked at here, so that the result is the Conv's own, in another layout."""
    rng = np.random.default_rng(0)
    weight, x = rng.normal(size=shape), rng.normal(size=(2, *size)).astype(np.float32)
    model = convolution(weight, size, bias=False, **attributes)
    node = ir.from_proto(model).graph[0]
    columns = columns_of(x, node, shape)
    groups = attributes.get("group", 1)
    filters = weight.reshape(groups, shape[0] // groups, -1)
    expected = ort_run(model, {"x": x})["y"]
    found = np.einsum("gpd,gmd->pgm", columns, filters).reshape(2, -1, shape[0]).transpose(0, 2, 1)
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-4, atol=1e-4)


LAYERS = {
    "Gemm<transA = 1, transB = 1>": ((5, 3), [(3, 7)]),
    "Gemm<transA = 1>": ((3, 5), [(3, 7)]),
    "MatMul": ((3, 5), [(2, 4, 3)]),
    "MatMul ": ((2, 3, 5), [(2, 4, 3), (6, 2, 4, 3), (4, 3)]),
    "MatMul  ": ((2, 1, 3, 5), [(2, 4, 4, 3), (4, 4, 3)]),
    "ConvTranspose": ((4, 3, 2, 3), [(2, 4, 5, 5)]),
    "ConvTranspose<strides = [2, 3], pads = [1, 0, 2, 4], dilations = [2, 1], output_padding = [1, 2]>": (
        (4, 3, 3, 2),
        [(2, 4, 5, 5)],
    ),
    "ConvTranspose<group = 2, strides = [2, 2]>": ((4, 3, 3, 3), [(2, 4, 4, 3)]),
    'ConvTranspose<auto_pad = "SAME_UPPER", strides = [2, 2]>': ((4, 3, 3, 3), [(2, 4, 4, 3)]),
    "ConvTranspose<output_shape = [9, 8], strides = [2, 2]>": ((4, 3, 3, 4), [(2, 4, 4, 3)]),
}


@pytest.mark.parametrize("text", LAYERS)
def test_columns_times_filters_is_the_layer(text: str) -> None:
    shape, sizes = LAYERS[text]
    rng = np.random.default_rng(0)
    weight = rng.normal(size=shape).astype(np.float32)
    for size in sizes:
        x = rng.normal(size=size).astype(np.float32)
        dimensions = ",".join(map(str, size))
        name, _, attributes = text.strip().partition("<")
        kept = f"<{attributes}" if attributes else ""
        model = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 17]> g (float[{dimensions}] x) => (float y) {{ y = {name} {kept} (x, w) }}'
        )
        model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
        model.graph.output[0].type.tensor_type.ClearField("shape")
        node = ir.from_proto(model).graph[0]
        filters = filters_of(weight, node)
        np.testing.assert_array_equal(weight_of(filters, node, shape), weight)
        found = np.einsum("gpd,gmd->gpm", columns_of(x, node, shape, places=10**6), filters)
        expected = ort_run(model, {"x": x})["y"]
        # Values in no order: what layers put where differs, what they compute does not.
        np.testing.assert_allclose(np.sort(found, axis=None), np.sort(expected, axis=None), rtol=1e-4, atol=1e-4)


def correlated(count: int, channels: int, seed: int) -> np.ndarray:
    """Inputs with a mean that go together, as the results of a SiLU do."""
    mix = np.random.default_rng(7).normal(size=(channels, 3))
    hidden = np.random.default_rng(seed).normal(size=(count, 3, 6, 6))
    noise = np.random.default_rng(seed + 1).normal(size=(count, channels, 6, 6)) * 0.1
    return (np.einsum("ch,nhij->ncij", mix, hidden) + noise + 1).astype(np.float32)


def loss(model: onnx.ModelProto, quantized: onnx.ModelProto) -> float:
    """Mean squared error on inputs that calibration has not seen."""
    feeds = {"x": correlated(8, 16, 5)}
    return float(np.square(ort_run(model, feeds)["y"] - ort_run(quantized, feeds)["y"]).mean())


@pytest.mark.parametrize("bias", [True, False])
def test_the_output_has_less_error(bias: bool) -> None:
    """With 4-bit weights, whose rounding is what counts. Inputs of three factors leave much to make up for."""
    model = convolution(np.random.default_rng(1).normal(size=(8, 16, 1, 1)), (16, 6, 6), bias=bias)
    options: dict[str, Any] = {
        "data": {"x": correlated(32, 16, 0)},
        "overrides": Overrides(weight_bits=4),
    }
    nearest = onnxqat.insert_qdq(model, rounding="nearest", **options)
    chosen = onnxqat.insert_qdq(model, rounding="compensated", **options)
    assert loss(model, chosen.model) < loss(model, nearest.model) / 3
    weights = [constants(r.model)["w"] for r in (nearest, chosen)]
    scale = constants(chosen.model)["w_scale"].reshape(-1, 1, 1, 1)
    np.testing.assert_array_equal(weights[0], constants(model)["w"])
    # Scales are around those of calibration, and training starts from the weights next to the float ones that have the codes.
    ratio = constants(chosen.model)["w_scale"] / constants(nearest.model)["w_scale"]
    assert ((ratio > 0.65) & (ratio < 1.25) & (ratio != 1)).any()
    original, moved = weights[0] / scale, weights[1] / scale
    codes = np.clip(np.rint(moved), -8, 7)
    assert (np.rint(original) != codes).any()
    saturated = (original < -7.55) & (codes == -8) | (original > 6.55) & (codes == 7)
    within = (np.abs(original - codes) <= 0.45) | saturated
    np.testing.assert_allclose(moved[within], original[within], atol=1e-5)
    np.testing.assert_allclose(np.abs(moved - codes)[~within], 0.45, atol=1e-5)
    assert (np.sign(moved - codes) == np.sign(original - codes))[~within].all()


def constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}


def solved(rows: np.ndarray, scale: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Codes of `rows` (M, D) between -100 and 100."""
    ends = (np.full(rows.shape, end) for end in (-100.0, 100.0))
    return Solver(second).codes(rows, np.broadcast_to(scale, rows.shape), *ends)


def test_independent_inputs_get_the_nearest_codes() -> None:
    """Nothing can be made up for where the inputs have nothing to do with each other."""
    rng = np.random.default_rng(0)
    rows, scale = rng.normal(size=(2, 3, 5)), np.full((2, 3, 1), 0.1)
    codes = [solved(r, s, np.eye(5)) for r, s in zip(rows, scale, strict=True)]
    np.testing.assert_array_equal(codes, np.rint(rows / scale))


def test_a_dead_input_is_no_obstacle() -> None:
    codes = solved(np.full((2, 4), 0.26), np.full((2, 1), 0.1), np.zeros((4, 4)))
    np.testing.assert_array_equal(codes, np.full((2, 4), 3.0))


def test_blocks_of_columns_change_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates that wait for the end of a block are the updates of algorithm 1, one column after the other."""
    rng = np.random.default_rng(2)
    inputs, rows = rng.normal(size=(60, 20)) @ rng.normal(size=(20, 20)), rng.normal(size=(6, 20))
    found = []
    for columns in (1, 7, 128):
        monkeypatch.setattr(gptq, "COLUMNS", columns)
        found.append(solved(rows, np.full((6, 1), 0.3), inputs.T @ inputs / 60))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    assert (found[0] != np.rint(rows / 0.3)).any()


def test_data_that_can_be_read_once() -> None:
    model = convolution(np.random.default_rng(1).normal(size=(8, 16, 1, 1)), (16, 6, 6))

    def batches() -> Iterator[np.ndarray]:
        yield correlated(4, 16, 0)

    result = onnxqat.insert_qdq(model, data=batches(), rounding="compensated")
    np.testing.assert_array_equal(constants(result.model)["w"], constants(model)["w"])
    assert any("read only once" in remark.message for remark in result.remarks)


def test_unknown_rounding() -> None:
    with pytest.raises(UsageError, match="stochastic"):
        onnxqat.insert_qdq(convolution(np.ones((2, 2, 1, 1)), (2, 4, 4)), random_data=True, rounding="stochastic")  # type: ignore[arg-type]


def test_weights_make_up_for_what_rounding_takes_from_the_inputs() -> None:
    """Half of what 2-bit codes lose of inputs that go together is in the codes of the other inputs."""
    grid = QParams(np.float32(0.7), np.int64(0), QType.of(2, signed=False))
    values = np.clip(np.maximum(correlated(64, 8, 0), 0).transpose(0, 2, 3, 1).reshape(1, -1, 8), 0, 2.1)
    moments = Moments(np.zeros((1, 8)), np.zeros((1, 8)), np.zeros((1, 8, 8)))
    quantized = numerics.fake_quantize(values, grid)
    moments.add(quantized, values - quantized)
    second, cross = moments.averages(0, centred=True)
    assert cross is not None
    rows = np.random.default_rng(3).normal(size=(1, 5, 8))
    fresh = np.clip(np.maximum(correlated(64, 8, 9), 0).transpose(0, 2, 3, 1).reshape(-1, 8), 0, 2.1)
    inputs = numerics.fake_quantize(fresh, grid)
    wanted = fresh @ rows[0].T
    noise = [(wanted - inputs @ w[0].T).var(axis=0).sum() for w in (rows, rows + rows @ Solver(second).recovery(cross))]
    assert noise[1] < 0.75 * noise[0]
