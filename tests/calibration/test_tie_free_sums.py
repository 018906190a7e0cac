"""``--exact`` for integer kernels: what a fixed-point factor that rounds ties up makes of the file's own sums."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxqat
from onnxqat.calibration.exact import shift_limits
from onnxqat.errors import UsageError
from onnxqat.graph import io, qdq, query
from onnxqat.graph.quantizer import Quantizer
from onnxqat.placement.table_overrides import Overrides
from onnxqat.types import QParams, QType

NETWORK = """<ir_version: 8, opset_import: ["" : 13]> g (float[4,3,10,10] x) => (float[4,5] y) {
    c = Conv<pads = [1,1,1,1]>(x, w0, b0) r = Clip(c, zero, six)
    d = Conv<pads = [1,1,1,1], group = 8>(r, w1) e = Conv(d, w2, b2) f = Conv(r, w4, b4)
    s = Add(e, f) t = Relu(s) p = GlobalAveragePool(t) q = Flatten(p) y = Gemm<transB = 1>(q, w3) }"""
SHAPES = {"w0": (8, 3, 3, 3), "b0": (8,), "w1": (8, 1, 3, 3), "w2": (8, 8, 1, 1), "b2": (8,), "w3": (5, 8)}
SHAPES |= {"w4": (8, 8, 1, 1), "b4": (8,)}


def network() -> onnx.ModelProto:
    model = onnx.parser.parse_model(NETWORK)
    random = np.random.default_rng(0)
    values = {name: (0.8 * random.standard_normal(shape)).astype(np.float32) for name, shape in SHAPES.items()}
    values["w1"][3] *= 1e-4  # channels of very different size
    values |= {"zero": np.float32(0), "six": np.float32(6)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, n) for n, v in values.items())
    return model


@pytest.fixture(scope="module")
def made() -> onnx.ModelProto:
    x = 3 * np.random.default_rng(1).standard_normal((4, 3, 10, 10)).astype(np.float32)
    made: onnx.ModelProto = onnxqat.insert_qdq(
        network(), "qnn-htp", data={"x": x}, overrides=Overrides(exact=True)
    ).model
    return made


def layers(made: onnx.ModelProto) -> list[tuple[str, list[Quantizer]]]:
    """Layers by the tensor that they make, with the quantizers of input, weight, bias and result."""
    model = io.load(made)
    found = qdq.quantizers(model, every=True)
    readers, makers = qdq.by_output(found), {id(q.input): q for q in found}
    result = []
    for node in model.graph:
        if node.op_type not in ("Conv", "Gemm"):
            continue
        behind = node.outputs[0]
        while id(behind) not in makers:
            behind = behind.consumers()[0].outputs[0]
        result.append((str(node.outputs[0].name), [*(readers[id(v)] for v in node.inputs if v), makers[id(behind)]]))
    return result


def test_factors_are_powers_of_two_and_sums_are_odd(made: onnx.ModelProto) -> None:
    found = layers(made)
    assert [name for name, _ in found] == ["c", "d", "e", "f", "y_QuantizeLinear_Input"]
    for name, (x, weight, bias, result) in found:
        factor = weight.qparams.scale.astype(np.float64) * x.qparams.scale / result.qparams.scale
        # float32 holds a third to 24 bits
        np.testing.assert_allclose(np.log2(factor), np.rint(np.log2(factor)), atol=1e-6)
        assert (np.log2(factor) < -1).all()
        values = query.constant_array(weight.input)
        assert values is not None
        codes = values / weight.qparams.scale.reshape(-1, *[1] * (values.ndim - 1))
        np.testing.assert_allclose(codes, 2 * np.rint(codes / 2), atol=1e-5)  # the last bits of float32 at 127
        # a channel of next to nothing has a scale that the shifter reaches, and small codes or none
        assert np.log2(factor).min() > -16.5
        reached = np.broadcast_to(np.log2(factor) < -14.5, len(codes))
        assert (np.abs(codes).reshape(len(codes), -1).max(1)[~reached] > 40).all()
        assert reached.any() == (name == "d")
        offset = query.constant_array(bias.input)
        assert offset is not None
        np.testing.assert_array_equal(offset % 2, 1)


def test_a_sum_needs_no_rounding(made: onnx.ModelProto) -> None:
    model = io.load(made)
    found = qdq.quantizers(model, every=True)
    readers, makers = qdq.by_output(found), {id(q.input): q for q in found}
    (add,) = (n for n in model.graph if n.op_type == "Add")
    behind = makers[id(add.outputs[0].consumers()[0].outputs[0])]
    for value in add.inputs:
        factor = readers[id(value)].qparams.scale / behind.qparams.scale
        assert factor >= 1
        assert factor == np.rint(factor)


def test_a_clip_at_six_is_left_to_the_quantizer(made: onnx.ModelProto) -> None:
    """3 * 2**-7: a power of two would reach 7.97, and HTP drops the Clip all the same."""
    (clipped,) = (q for q in qdq.quantizers(io.load(made)) if q.tensor == "r")
    assert clipped.qparams.scale == 3 / 128
    assert "c_QuantizeLinear_Output" not in {o for n in made.graph.node for o in n.output}


def test_no_sum_lies_between_two_codes(made: onnx.ModelProto) -> None:
    """So rounding ties up, as HTP does, and to even are the same."""
    model = io.load(made)
    for _, (x, weight, bias, result) in layers(made):
        codes, offset = query.constant_array(weight.input), query.constant_array(bias.input)
        assert codes is not None
        assert offset is not None
        shift = np.rint(-np.log2(weight.qparams.scale.astype(np.float64) * x.qparams.scale / result.qparams.scale))
        inputs = np.random.default_rng(0).integers(0, 256, (1000, codes[0].size)) - int(x.qparams.zero_point)
        weights = np.rint(codes.reshape(len(codes), -1) / weight.qparams.scale.reshape(-1, 1)).astype(np.int64)
        steps = (inputs @ weights.T + offset) / 2.0**shift
        np.testing.assert_array_equal(np.floor(steps + 0.5), np.rint(steps))
    assert model.graph.num_nodes() > 20


def test_compensated_rounding_is_refused() -> None:
    x = np.zeros((4, 3, 10, 10), np.float32)
    with pytest.raises(UsageError, match="even codes"):
        onnxqat.insert_qdq(network(), "qnn-htp", data={"x": x}, overrides=Overrides(exact=True), rounding="compensated")


def test_others_keep_short_scales() -> None:
    """Runtimes that compute in float get the scales of few bits, and no bias."""
    x = np.random.default_rng(1).standard_normal((4, 3, 10, 10)).astype(np.float32)
    made = onnxqat.insert_qdq(network(), "openvino-cpu", data={"x": x}, overrides=Overrides(exact=True)).model
    assert len(next(n for n in made.graph.node if n.output[0] == "d").input) == 2


@pytest.mark.parametrize(("zero_point", "expected"), [(114, 56), (113, 56), (0, 0), (254, 128)])
def test_a_coarser_grid_keeps_its_even_zero_point(zero_point: int, expected: int) -> None:
    qparams = QParams(np.float32(0.25), np.int64(zero_point), QType("uint8", 0, 255), scale_bits=1)
    moved = int(shift_limits._coarser(qparams, np.asarray(1.0)).zero_point)
    assert moved == expected
