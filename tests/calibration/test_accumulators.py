"""Bounds of the sums of layers: reached by the input that asks for them, and passed by none."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxqat.arithmetic._base import WIDTHS
from onnxqat.calibration import accumulators
from onnxqat.calibration.columns import columns_of
from onnxqat.graph import io, walk
from onnxqat.graph.layers import LAYERS
from tests.bridge.integer import networks

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
layers (float[N, 4, 6, 6] x) => (float[N, 5] y)
<float[6, 4, 3, 3] w1, float[6] b1, float[6, 1, 3, 3] w2, float[8, 3, 3, 3] w3, float[8, 3, 2, 2] w4, float[3] b4,
 float[7, 48] w5, float[7] b5, float[7, 5] w6, int64[2] flat = {0, -1}, float low = {-0.5}, float high = {1.0}>
{
    a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
    b = Relu (a)
    c = Conv <group = 6, auto_pad = "SAME_UPPER"> (b, w2)
    d = Clip (c, low, high)
    e = Conv <group = 2, strides = [2, 2], pads = [1, 0, 0, 1]> (d, w3)
    f = ConvTranspose <strides = [2, 2]> (e, w4, b4)
    p = MaxPool <kernel_shape = [2, 2], strides = [1, 1]> (f)
    q = AveragePool <kernel_shape = [2, 2], strides = [1, 1]> (p)
    g = Reshape (q, flat)
    h = Gemm <transB = 1> (g, w5, b5)
    y = MatMul (h, w6)
}"""


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    x = np.random.default_rng(0).standard_normal((8, 4, 6, 6)).astype(np.float32)
    return networks.quantized(networks.with_weights(TEXT), x)


@pytest.fixture(scope="module")
def layers(model: onnx.ModelProto) -> dict[str, accumulators.Layer]:
    return {layer.node.outputs[0].name: layer for layer in accumulators.layers(io.load(model))}  # type: ignore[misc]


def partial_sums(layer: accumulators.Layer, columns: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """All partial sums of the products of each column with its filters, in the order of the columns, bias last."""
    products = columns[:, None, :, :].astype(np.int64) * filters[:, :, None, :]  # groups, filters, places, inputs
    sums = products.cumsum(-1).reshape(-1, *products.shape[2:])
    if layer.bias is not None:
        sums = np.concatenate([sums, sums[..., -1:] + layer.bias.reshape(-1, 1, 1)], -1)
    return sums


@pytest.mark.parametrize("name", ["a", "c", "e", "f", "h", "y"])
def test_ends_are_reached_and_not_passed(layers: dict[str, accumulators.Layer], name: str) -> None:
    layer = next(layer for output, layer in layers.items() if output.startswith(name))
    codes, ends = layer.codes, layer.ends()
    assert codes is not None
    assert ends is not None
    low, high = (int(end) for end in layer.steps)
    filters = accumulators.filters_of(codes, layer.node)
    rng = np.random.default_rng(1)
    shape = {"a": (3, 4, 6, 6), "c": (3, 6, 6, 6), "e": (3, 6, 6, 6), "f": (3, 8, 3, 3), "h": (9, 48), "y": (9, 7)}
    x = rng.integers(low, high + 1, shape[name])
    columns = columns_of(x.astype(np.float32), layer.node, codes.shape)
    sums = partial_sums(layer, columns, filters)
    assert (sums.min((1, 2)) >= ends.low).all()
    assert (sums.max((1, 2)) <= ends.high).all()
    bias = np.zeros(filters.shape[:2]) if layer.bias is None else layer.bias.reshape(filters.shape[:2])
    for limit, part, reached in ((low, high, ends.low), (high, low, ends.high)):
        vertex = np.where(filters > 0, limit, part)
        full = (vertex * filters).sum(-1)
        added = np.minimum(bias, 0) if reached is ends.low else np.maximum(bias, 0)
        assert np.array_equal((full + added).reshape(-1), reached)


def test_a_relu_or_clip_moves_the_ends_of_steps(layers: dict[str, accumulators.Layer]) -> None:
    grouped = layers["e"]
    low, high = grouped.steps
    scale = float(grouped.input.qparams.scale)
    assert (int(low), int(high)) == (round(-0.5 / scale), min(round(1.0 / scale), 255))
    assert layers["c"].steps[0] == 0
    first = layers["a"]
    zero = int(first.input.qparams.zero_point)
    assert zero > 0
    assert tuple(map(int, first.steps)) == (-zero, 255 - zero)


def test_ranges_of_channels_tighten(layers: dict[str, accumulators.Layer]) -> None:
    layer = layers["e"]
    whole = layer.ends()
    assert whole is not None
    low, high = (np.full(6, int(end)) for end in layer.steps)
    same = layer.ends((low, high))
    high[:3] = low[:3] = 0  # the first group reads nothing
    half = layer.ends((low, high))
    assert same is not None
    assert half is not None
    assert np.array_equal(same.low, whole.low)
    assert np.array_equal(same.high, whole.high)
    assert not half.low[:4].any()
    assert not half.high[:4].any()
    assert np.array_equal(half.high[4:], whole.high[4:])


def test_the_widest_channel_and_its_bits() -> None:
    filters = np.array([[[1, 1], [-2, 3], [0, 0]]])
    ends = accumulators.ends(filters, (np.asarray(-4), np.asarray(3)), np.array([0, -5, 100]))
    assert ends.low.tolist() == [-8, -6 - 12 - 5, 0]
    assert ends.high.tolist() == [6, 8 + 9, 100]
    assert ends.widest == 2
    assert ends.bits == 8
    assert max(WIDTHS) == 32


def test_every_layer_is_found(model: onnx.ModelProto, layers: dict[str, accumulators.Layer]) -> None:
    wanted = [n for n in walk.nodes(io.load(model)) if n.op_type in LAYERS]
    assert len(layers) == len(wanted) == 6


def test_a_bias_of_few_bits_counts_in_units_of_the_sums() -> None:
    model = networks.quantized(networks.kinds(), networks.images(16), "vitis-dpu")
    for layer in accumulators.layers(io.load(model)):
        if layer.bias is None:
            continue
        values = layer.bias * (layer.input.qparams.scale * layer.weight.qparams.scale)
        constant = next(
            c
            for c in networks.kinds().graph.initializer
            if layer.weight.tensor == f"w{c.name[1:]}" and c.name[0] == "b"
        )
        wanted = onnx.numpy_helper.to_array(constant)
        assert np.abs(values - wanted).max() < 0.01
