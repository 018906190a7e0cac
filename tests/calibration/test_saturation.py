"""Weights whose products saturate on x86 processors without VNNI: found, and scaled only where it can happen."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxqat
from onnxqat import numerics
from onnxqat.calibration import saturation
from onnxqat.calibration.largest_codes import LargestCodes
from onnxqat.graph import io, qdq
from onnxqat.placement.table_overrides import Overrides
from onnxqat.types import QParams, QType
from onnxqat.validation import machine
from tests.bridge.integer import networks
from tests.passes.checks import parse

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
layers (float[N, 7, 6, 6] x) => (float[N, 5] y)
<float[16, 7, 3, 3] w1, float[16, 1, 3, 3] w2, float[16, 9] w3, float[9, 5] w4, int64[2] flat = {0, -1}>
{
    a = Conv <pads = [1, 1, 1, 1]> (x, w1)
    b = Relu (a)
    c = Conv <group = 16, pads = [1, 1, 1, 1]> (b, w2)
    d = Relu (c)
    e = GlobalAveragePool (d)
    f = Reshape (e, flat)
    g = Gemm (f, w3)
    h = Relu (g)
    y = MatMul (h, w4)
}"""


def saturated_sums(activation: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """What ``vpmaddubsw`` and ``vpmaddwd`` make of rows of uint8 and int8 codes: pairs of products saturate at 16 bits."""
    products = activation.astype(np.int64) * weight.astype(np.int64)
    products = np.pad(products, ((0, 0), (0, products.shape[1] % 2)))
    return np.clip(products.reshape(len(products), -1, 2).sum(-1), -32768, 32767).sum(-1)


@pytest.fixture(scope="module")
def float_model() -> onnx.ModelProto:
    return networks.with_weights(TEXT)


def quantized(model: onnx.ModelProto, **overrides: object) -> onnxqat.insertion.insert.InsertResult:
    data = np.random.default_rng(0).standard_normal((8, 7, 6, 6)).astype(np.float32)
    return onnxqat.insert_qdq(model, data=[{"x": data}], overrides=Overrides(**overrides))  # type: ignore[arg-type]


def weights(result: onnxqat.insertion.insert.InsertResult) -> dict[str, tuple[ir.Node, np.ndarray, np.ndarray]]:
    """Node, codes and scales by the name of the weight."""
    found = {}
    for q in qdq.quantizers(io.load(result.model)):
        if q.role == "weight":
            (node,) = q.outputs[0].consumers()
            codes = numerics.quantize(q.input.const_value.numpy(), q.qparams)
            found[q.tensor] = (node, codes, q.qparams.scale)
    return found


@pytest.mark.parametrize("per_channel", [True, False])
def test_no_product_saturates_and_no_scale_is_raised_for_nothing(
    float_model: onnx.ModelProto, per_channel: bool
) -> None:
    how = {"per_channel": per_channel, "scale_bits": (24, 24)}
    full, safe = quantized(float_model, reduce_range=False, **how), quantized(float_model, safe_range=True, **how)
    raised = 0
    for name, (node, codes, scale) in weights(safe).items():
        _, before, free = weights(full)[name]
        assert saturation.saturating(node, codes) == 0
        assert np.abs(codes).max() > 64
        rows, unsafe = saturation.products(node, codes), saturation.products(node, before)
        if rows is None or unsafe is None:  # depthwise
            np.testing.assert_array_equal(scale, free)
            continue
        worst = saturation.worst_pairs(node, before)
        could = worst > saturation.LIMIT
        raised += int(np.sum(scale > free))
        if per_channel:
            np.testing.assert_array_equal(scale > free, could)
            assert (scale <= free * np.maximum(worst / saturation.LIMIT, 1) * 1.02).all()
        everything = np.where(rows > 0, 255, 0)
        np.testing.assert_array_equal(saturated_sums(everything, rows), (everything * rows).sum(1))
    assert raised
    (told,) = (r for r in safe.remarks if "saturates" in r.message)
    assert told.message.startswith(f"{raised} of ")
    assert "calibration" not in told.message
    assert not [r for r in full.remarks if "no product" in r.message]


def test_the_model_of_the_kernel_saturates_full_range_weights() -> None:
    rows = np.array([[127, 127, -5, 3, 9]])
    assert saturation.worst_pairs(ir.Node("", "MatMul", []), rows.T).tolist() == [254 * 255]
    assert saturated_sums(np.full((1, 5), 255), rows)[0] == 32767 + 255 * (-2 + 9)


def test_order_of_products() -> None:
    weight = np.arange(2 * 3 * 2 * 2).reshape(2, 3, 2, 2)
    conv = ir.Node("", "Conv", [])
    assert saturation.products(conv, weight)[0].tolist() == [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]
    matrix = np.arange(6).reshape(3, 2)
    assert saturation.products(ir.Node("", "MatMul", []), matrix).tolist() == [[0, 2, 4], [1, 3, 5]]
    transposed = ir.Node("", "Gemm", [], [ir.AttrInt64("transB", 1)])
    assert saturation.products(transposed, matrix).tolist() == matrix.tolist()
    assert saturation.products(ir.Node("", "MatMul", []), np.zeros((4, 3, 2))).shape == (8, 3)


@pytest.mark.parametrize(("inputs", "group", "stride"), [(4, 1, 1), (7, 1, 2), (12, 3, 1)])
def test_a_deconvolution_has_the_neighbours_of_its_convolution(inputs: int, group: int, stride: int) -> None:
    """Its gradient-like weight has the inputs first; what oneDNN adds up is the same as of a convolution."""
    rng = np.random.default_rng(0)
    codes = rng.integers(-127, 128, (inputs, 5, 3, 2))
    attributes = [ir.AttrInt64("group", group), ir.AttrInt64s("strides", [stride, stride])]
    deconv, conv = (ir.Node("", op, [], attributes) for op in ("ConvTranspose", "Conv"))
    same = np.concatenate([part.swapaxes(0, 1) for part in np.split(codes, group)])
    largest = LargestCodes(rng.integers(1, 256, inputs), rng.integers(1, 400, inputs // 2 * (inputs % 2 == 0)))
    for known in (None, largest):
        np.testing.assert_array_equal(
            saturation.worst_pairs(deconv, codes, known), saturation.worst_pairs(conv, same, known)
        )
    scale = QParams(np.full(5, 0.01, np.float32), np.zeros(5, np.int64), QType.of(8, signed=True), axis=1)
    raised = saturation.unsaturated(deconv, codes.astype(np.float32) * np.float32(0.01), scale)
    assert (raised.scale > scale.scale).all()
    assert saturation.saturating(deconv, numerics.quantize(codes.astype(np.float32) * np.float32(0.01), raised)) == 0
    assert saturation.products(ir.Node("", "ConvTranspose", [], [ir.AttrInt64("group", 4)]), codes[:4, :1]) is None


@pytest.mark.parametrize(("backend", "raised"), [("openvino-cpu", True), ("onnxruntime-cpu", False)])
def test_a_deconvolution_saturates_where_its_kernel_runs_on_codes(backend: str, raised: bool) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    layers (float[N, 8, 6, 6] x) => (float[N, 5, 8, 8] y)
    <float[8, 5, 3, 3] w> { y = ConvTranspose (x, w) }"""
    x = np.random.default_rng(0).standard_normal((300, 8, 6, 6)).astype(np.float32)
    model = networks.with_weights(text)
    result = onnxqat.insert_qdq(model, backend, data={"x": x}, guard=False)
    assert bool([r for r in result.remarks if "saturates" in r.message]) is raised


def test_an_odd_number_of_channels_has_other_neighbours_in_onednn() -> None:
    """Channels 0 and 1 of the second of two places: MLAS adds each to another one, oneDNN one to the other."""
    codes = np.zeros((2, 3, 1, 2), np.int64)
    codes[0, :2, 0, 1] = 127
    codes[1, :2, 0, 1] = 60
    conv = ir.Node("", "Conv", [])
    bounds = saturation.pair_bounds(conv, codes)
    assert bounds is not None
    assert bounds.max(1).tolist() == [127 * 255, 60 * 255]
    assert saturation.worst_pairs(conv, codes).tolist() == [254 * 255, 120 * 255]
    largest = LargestCodes(np.array([100, 50, 255]), np.array([]))
    assert saturation.worst_pairs(conv, codes, largest)[0] == 127 * 150
    even = np.concatenate([codes, np.zeros_like(codes[:, :1])], axis=1)
    assert saturation.worst_pairs(conv, even).tolist() == [254 * 255, 120 * 255]


def test_a_weight_behind_a_transpose_is_that_of_its_layer() -> None:
    """As some tools write a linear layer; deployment folds the Transpose, and kernels then meet these codes."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    layers (float[N, 8] x) => (float[N, 4] y, float[N, 4] z)
    <int8[4, 8] w, float s = {0.02}, int8 p = {0}> {
        d = DequantizeLinear (w, s, p)
        t = Transpose <perm = [1, 0]> (d)
        y = MatMul (x, t)
        u = Transpose <perm = [0, 1, 2]> (d)
        z = MatMul (x, u)
    }""".replace("int8[4, 8] w", f"int8[4, 8] w = {{{', '.join(['127'] * 16 + ['60'] * 16)}}}")
    assert [(node.outputs[0].name, count) for node, count in saturation.layers(io.load(parse(text)))] == [("y", 2)]


@pytest.mark.parametrize(
    ("filters", "group", "is_depthwise"), [(8, 8, True), (1, 1, True), (8, 1, False), (16, 8, False)]
)
def test_one_input_channel_makes_no_depthwise_convolution(filters: int, group: int, is_depthwise: bool) -> None:
    """Measured in onnxruntime on a processor without VNNI: only one filter a channel has a kernel that does not saturate."""
    conv = ir.Node("", "Conv", [], [ir.AttrInt64("group", group)])
    codes = np.full((filters, 1, 3, 3), 127)
    assert (saturation.products(conv, codes) is None) == is_depthwise
    assert saturation.saturating(conv, codes) == (0 if is_depthwise else filters)


def test_the_remark_of_a_machine_counts_the_channels(
    float_model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "saturates", lambda: True)
    (remark,) = machine.saturation(io.load(quantized(float_model, reduce_range=False).model))
    assert "channels of 3 layers;" in remark.message
    assert len(remark.nodes) == 3
    for safe in ({"safe_range": True}, {"reduce_range": True}):
        assert machine.saturation(io.load(quantized(float_model, **safe).model)) == []


@pytest.mark.parametrize("rows", [12, 16])
def test_layers_that_read_a_weight_along_different_axes(rows: int) -> None:
    """A tied embedding: scales lie along the channels of the one layer, and rows of the other have values of all."""
    rng = np.random.default_rng(0)
    weight = rng.choice([-1.0, 1.0], (rows, 16)).astype(np.float32) * np.linspace(0.1, 1, 16, dtype=np.float32)
    qparams = QParams(np.abs(weight).max(0) / np.float32(127), np.zeros(16, np.int64), QType.of(8, signed=True), axis=1)
    for node in (ir.Node("", "MatMul", []), ir.Node("", "Gemm", [], [ir.AttrInt64("transB", 1)])):
        qparams = saturation.unsaturated(node, weight, qparams)
        assert saturation.saturating(node, numerics.quantize(weight, qparams)) == 0
