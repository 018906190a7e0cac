"""Weights are kept from saturating for the activations of the calibration data, with a margin, and the file says so."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxqat
from onnxqat import numerics
from onnxqat.calibration import largest_codes, saturation
from onnxqat.calibration.channel_peaks import ChannelPeaks
from onnxqat.calibration.largest_codes import LargestCodes
from onnxqat.graph import io, notes, qdq
from onnxqat.placement.table_overrides import Overrides
from onnxqat.types import Placement, QParams, QType
from tests.bridge.integer import networks

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
layers (float[N, 6, 6, 6] x) => (float[N, 5] y)
<float[16, 6, 3, 3] w1, float[16, 8, 3, 3] w2, float[16, 5] w3, int64[2] flat = {0, -1}>
{
    a = Conv <pads = [1, 1, 1, 1]> (x, w1)
    b = Relu (a)
    c = Conv <group = 2, strides = [2, 2]> (b, w2)
    d = Relu (c)
    e = GlobalAveragePool (d)
    f = Reshape (e, flat)
    y = MatMul (f, w3)
}"""


def images(seed: int = 0, size: float = 1.0) -> np.ndarray:
    """Channels of very different size, whose grid ends where the largest does, at enough places to go by."""
    x = np.random.default_rng(seed).standard_normal((300, 6, 6, 6)) * size
    return (x * np.array([4, 1, 0.5, 0.5, 0.2, 0.2]).reshape(1, 6, 1, 1)).astype(np.float32)


@pytest.fixture(scope="module")
def float_model() -> onnx.ModelProto:
    return networks.with_weights(TEXT)


def insert(
    model: onnx.ModelProto, rounding: str = "nearest", **overrides: object
) -> onnxqat.insertion.insert.InsertResult:
    return onnxqat.insert_qdq(
        model, data={"x": images()}, overrides=Overrides(**overrides), rounding=rounding, guard=False
    )


def layers(result: onnxqat.insertion.insert.InsertResult) -> dict[str, tuple[ir.Node, np.ndarray, np.ndarray]]:
    """Node, codes and scales by the name of the weight."""
    found = {}
    for q in qdq.quantizers(io.load(result.model)):
        if q.role == "weight":
            (node,) = q.outputs[0].consumers()
            found[q.tensor] = (node, saturation.codes_of(q), q.qparams.scale)
    return found


def remark(result: onnxqat.insertion.insert.InsertResult) -> str:
    return next(r.message for r in result.remarks if "saturates" in r.message)


@pytest.mark.parametrize("rounding", ["nearest", "compensated"])
def test_fewer_scales_are_raised_by_the_data_and_none_of_their_sums_saturates(
    float_model: onnx.ModelProto, rounding: str
) -> None:
    full, safe, made = (
        layers(insert(float_model, rounding, **how)) for how in ({"reduce_range": False}, {"safe_range": True}, {})
    )
    raised = {
        kind: sum(int((found[w][2] > full[w][2]).sum()) for w in full) for kind, found in (("safe", safe), ("", made))
    }
    assert 0 < raised[""] < raised["safe"]
    for node, codes, _ in made.values():
        assert saturation.saturating(node, codes, largest_codes.noted(node)) == 0
    text = remark(insert(float_model))
    assert text.startswith(f"{raised['']} of ")
    assert f"1.5 times what its channel had in the calibration data; --safe-range raises {raised['safe']}" in text


def test_notes_hold_the_codes_of_the_data_with_a_margin(float_model: onnx.ModelProto) -> None:
    result = insert(float_model)
    node, _, _ = layers(result)["w1"]
    grid = next(q.qparams for q in qdq.quantizers(io.load(result.model)) if q.tensor == "x")
    found = largest_codes.noted(node)
    assert found is not None
    highest = np.maximum(images(), 0).max((0, 2, 3))
    np.testing.assert_array_equal(found.channels, numerics.quantize(highest * np.float32(1.5), grid))
    codes = np.maximum(numerics.quantize(images(), grid).astype(int), int(grid.zero_point))
    assert (found.sums >= (codes[:, 0::2] + codes[:, 1::2]).max((0, 2, 3))).all()
    assert (found.sums < found.channels[0::2] + found.channels[1::2]).any()
    assert notes.LARGEST_CODES not in layers(insert(float_model, safe_range=True))["w1"][0].metadata_props


def test_random_data_and_16_bits() -> None:
    model = networks.with_weights(TEXT)
    drawn = onnxqat.insert_qdq(model, random_data=True)
    assert "calibration data" not in remark(drawn)
    wide = insert(model, activation_bits=16)
    assert not [r for r in wide.remarks if "saturates" in r.message]


def test_two_neighbours_share_what_their_sum_leaves() -> None:
    """Codes up to 200 each and 250 together: the larger weight has 200 of them, the other 50."""
    node, codes = ir.Node("", "MatMul", []), np.array([[100, -3], [60, -90]])
    tops = np.array([200, 200])
    assert saturation.worst_pairs(node, codes, LargestCodes(tops, np.array([250]))).tolist() == [23000, 18150]
    assert saturation.worst_pairs(node, codes, LargestCodes(tops, np.array([400]))).tolist() == [32000, 18600]
    other_size = LargestCodes(np.array([1, 2, 3, 4]), np.array([3, 7]))
    assert saturation.worst_pairs(node, codes, other_size).tolist() == [160 * 255, 93 * 255]


def test_pairs_of_an_odd_number_of_channels_reach_to_the_next_place() -> None:
    node = ir.Node("", "Conv", [])
    codes = np.array([[[1, 10], [2, 20], [4, 40]]])
    largest = LargestCodes(np.array([3, 5, 7]), np.array([], int))
    assert saturation.pair_bounds(node, codes, largest).tolist() == [[3 + 10, 28 + 30, 100 + 280]]


def test_int8_codes_are_moved_and_nothing_is_below_zero() -> None:
    peaks = ChannelPeaks(1)
    peaks.update(np.array([[[2.0, -1], [-5, -4]]], np.float32))
    peaks.update(np.array([[[1.0, 1], [-3, -9]]], np.float32))
    peaks.update(np.empty((0, 2, 2), np.float32))
    assert peaks.highest.tolist() == [2, -3]
    assert peaks.sums.tolist() == [2]
    x = ir.Value(name="x")
    node = ir.Node("", "Conv", [x, ir.Value(name="w")], name="n")
    grid = QParams(np.float32(0.1), np.int8(-20), QType.of(8, signed=True))
    placed = [Placement("x", grid, "")]
    assert peaks.count == 4
    assert largest_codes.of_layers([node], placed, {"x": peaks}) == {}  # too few values to go by
    peaks.count = largest_codes.FEW
    found = largest_codes.of_layers([node], placed, {"x": peaks})["n"]
    assert found.channels.tolist() == [128 - 20 + 30, 128 - 20]
    assert found.sums.tolist() == [2 * (128 - 20) + 30 + 1]
    largest_codes.note(node, found)
    again = largest_codes.noted(node)
    assert again is not None
    assert (again.channels.tolist(), again.sums.tolist()) == (found.channels.tolist(), found.sums.tolist())
    node.metadata_props[notes.LARGEST_CODES] = "not a number"
    assert largest_codes.noted(node) is None
