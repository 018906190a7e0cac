"""fold-quantized-batchnorm: scales take the BatchNormalization, codes keep their size."""

import numpy as np
import onnx
import pytest

from onnxqat.graph import io, qdq, query
from onnxqat.graph.quantizer import Quantizer
from onnxqat.passes.deploy_form import DeployForm
from onnxqat.passes.fold_quantized_batchnorm import FoldQuantizedBatchnorm
from tests.passes.checks import check_pass, constants, in_function, in_if, parse, run_checked

BN = "float[3] g = {2, -1, 0}, float[3] b = {1, 2, 3}, float[3] m = {0.5, 0, -1}, float[3] v = {3.99999, 0.99999, 0.24999}"
X = "float xs = {0.05}, uint8 xz = {3}"
W = "float[3] s = {0.02, 0.3, 0.1}, int8[3] z = {0, 0, 0}"
SHORT = "float[3] s = {0.25, 0.3125, 0.125}, int8[3] z = {0, 0, 0}"
POWERS = "float[3] s = {0.25, 0.5, 0.125}, int8[3] z = {0, 0, 0}"
WEIGHT = "float[3,2,1,1] w = {0.5, -1.25, 0.75, 2, -0.3, 0.1}"
CODES = [[25, -62], [2, 7], [-3, 1]]
PAIR = "xq = QuantizeLinear(x, xs, xz) xd = DequantizeLinear(xq, xs, xz)"
STEP = 0.05 * 0.3


def conv(
    more: str = "", weight: str = WEIGHT, nodes: str = "[conv] c = Conv(xd, d)", clip: str = "", grid: str = W
) -> str:
    """A quantized Conv and its BatchNormalization."""
    made = f"q = QuantizeLinear <axis = 0> (w, s, z) {clip}"
    return f"""g (float[N,2,4,4] x) => (float[N,3,4,4] y) <{BN}, {X}, {grid}, {weight}{more}> {{ {PAIR} {made}
        d = DequantizeLinear <axis = 0> ({"k" if clip else "q"}, s, z) {nodes} y = BatchNormalization(c, g, b, m, v) }}"""


def weight_of(model: onnx.ModelProto) -> Quantizer:
    """The quantizer of the weight of the first layer."""
    loaded = io.load(model)
    found = qdq.by_output(qdq.quantizers(loaded, every=True))
    return next(found[id(n.inputs[1])] for n in loaded.graph if n.op_type in ("Conv", "ConvTranspose", "Gemm"))


def codes_of(model: onnx.ModelProto) -> np.ndarray:
    """Its codes in the deploy form."""
    quantizer = weight_of(DeployForm().run(model).model)
    return np.asarray(query.constant_array(quantizer.input)).astype(int)


def test_float_bias_before_and_after() -> None:
    check_pass(
        FoldQuantizedBatchnorm("float"),
        conv(),
        """g (float[N,2,4,4] x) => (float[N,3,4,4] y) <float xs = {0.05}, uint8 xz = {3},
        float[3] s = {0.02, 0.3, 0.16}, int8[3] z = {0, 0, 0}, float[3,2,1,1] w = {0.5, -1.25, -0.75, -2, 0, 0},
        float[3] conv_bias = {0.5, 2, 3}> {
        xq = QuantizeLinear(x, xs, xz) xd = DequantizeLinear(xq, xs, xz)
        q = QuantizeLinear <axis = 0> (w, s, z) d = DequantizeLinear <axis = 0> (q, s, z)
        [conv] y = Conv(xd, d, conv_bias) }""",
        atol=1e-5,
    )


@pytest.mark.parametrize("form", ["train", "deploy"])
@pytest.mark.parametrize("bias", ["float", "snapped", "int32"])
def test_codes_keep_their_size_in_both_forms(form: str, bias: str) -> None:
    text = conv(", float[3] c0 = {1, 2, 4}", nodes="[conv] c = Conv(xd, d, c0)")
    model = parse(text) if form == "train" else DeployForm().run(parse(text)).model
    atol = 1e-5 if bias == "float" else 0.51 * STEP
    for wrapped in (model, in_if(model), in_function(model)):
        result = run_checked(FoldQuantizedBatchnorm(bias), wrapped, atol)  # type: ignore[arg-type]
        assert result.changed, result.remarks
    folded = FoldQuantizedBatchnorm(bias).run(model).model  # type: ignore[arg-type]
    codes = np.asarray(CODES).reshape(3, 2, 1, 1)
    np.testing.assert_array_equal(codes_of(folded), codes * np.reshape([1, -1, 0], (3, 1, 1, 1)))
    np.testing.assert_allclose(weight_of(folded).qparams.scale, [0.02, 0.3, 0.16], rtol=1e-5)
    stored = [q for q in qdq.quantizers(io.load(folded)) if q.role == "bias"]
    assert [q.derived_from is not None for q in stored] == ([True] if bias == "int32" else [])


def test_a_derived_bias_in_front_is_taken_up() -> None:
    more = ", int32[3] bq = {1000, 200, -300}, float[3] bs = {0.001, 0.015, 0.005}, int32[3] bz = {0, 0, 0}"
    nodes = "bd = DequantizeLinear <axis = 0> (bq, bs, bz) [conv] c = Conv(xd, d, bd)"
    result = run_checked(FoldQuantizedBatchnorm(), parse(conv(more, nodes=nodes)), 0.51 * STEP)
    bias = next(q for q in qdq.quantizers(io.load(result.model)) if q.role == "bias")
    np.testing.assert_array_equal(query.constant_array(bias.input), [1500, -67, 375])


@pytest.mark.parametrize(
    ("layer", "weight", "axis"),
    [
        ("ConvTranspose(xd, d)", "float[2,3,1,1] w = {0.5, 0.75, -0.3, -1.25, 2, 0.1}", 1),
        ("Gemm(xd, d)", "float[2,3] w = {0.5, 0.75, -0.3, -1.25, 2, 0.1}", 1),
        ("Gemm <transB = 1> (xd, d)", "float[3,2] w = {0.5, -1.25, 0.75, 2, -0.3, 0.1}", 0),
        ("MatMul(xd, d)", "float[2,3] w = {0.5, 0.75, -0.3, -1.25, 2, 0.1}", 1),
    ],
)
def test_other_layers(layer: str, weight: str, axis: int) -> None:
    text = conv(weight=weight, nodes=f"[layer] c = {layer}").replace("axis = 0", f"axis = {axis}")
    text = text if "Conv" in layer else text.replace(",4,4]", "]")
    result = run_checked(FoldQuantizedBatchnorm("float"), parse(text), 1e-5)
    layers = [n for n in result.model.graph.node if n.name == "layer"]
    assert [n.op_type for n in layers] == ["ConvTranspose" if "Conv" in layer else "Gemm"]
    codes = np.moveaxis(codes_of(result.model), axis, 0).reshape(3, 2)
    np.testing.assert_array_equal(codes, np.asarray(CODES) * [[1], [-1], [0]])


def test_a_narrow_grid_keeps_its_clip_and_a_limit_on_scales_ends() -> None:
    model = parse(conv(", int8 lo = {-7}, int8 hi = {7}", clip="k = Clip(q, lo, hi)", grid=SHORT))
    for node in model.graph.node[2:5]:
        entry = node.metadata_props.add()
        entry.key, entry.value = qdq.SCALE_BITS, "4"
    result = run_checked(FoldQuantizedBatchnorm("float"), model, 1e-5)
    quantizer = weight_of(result.model)
    assert (quantizer.qparams.qtype.quant_min, quantizer.qparams.qtype.quant_max) == (-7, 7)
    assert weight_of(model).qparams.scale_bits == 4
    assert quantizer.qparams.scale_bits is None


def test_a_weight_that_others_read_stays_theirs() -> None:
    nodes = "o = Conv(xd, d) [conv] c = Conv(xd, d)"
    text = conv(nodes=nodes).replace("y = Batch", "t = Batch").replace(" }", " y = Add(t, o) }")
    for model in (parse(text), DeployForm().run(parse(text)).model):
        result = run_checked(FoldQuantizedBatchnorm("float"), model, 1e-5)
        assert len([q for q in qdq.quantizers(io.load(result.model)) if q.role == "weight"]) == 2


def test_all_channels_without_gamma_leave_beta() -> None:
    text = conv().replace("{2, -1, 0}", "{0, 0, 0}")
    result = run_checked(FoldQuantizedBatchnorm(), parse(text), 0.51 * 0.05)
    assert not codes_of(result.model).any()
    assert (weight_of(result.model).qparams.scale == 1).all()


def test_a_gamma_near_zero_keeps_its_bias_in_int32() -> None:
    text = conv().replace("{2, -1, 0}", "{2, -0.00000001, 1e-37}")
    result = run_checked(FoldQuantizedBatchnorm(), parse(text), 0.51 * STEP)
    assert "rounded to a larger scale" in result.remarks[1].message
    bias = next(q for q in qdq.quantizers(io.load(result.model)) if q.role == "bias")
    stored = np.asarray(query.constant_array(bias.input)).astype(np.int64)
    np.testing.assert_allclose(stored * bias.qparams.scale.astype(np.float64), [0.5, 2, 3], rtol=1e-3)
    assert codes_of(result.model)[0].any()


def test_float8_codes_change_their_signs() -> None:
    text = conv(grid="float[3] s = {0.02, 0.3, 0.1}, float8e4m3fn[3] z = {0, 0, 0}")
    result = FoldQuantizedBatchnorm().run(parse('<ir_version: 9, opset_import: ["" : 19]>' + text))
    assert [n.op_type for n in result.model.graph.node].count("BatchNormalization") == 0
    np.testing.assert_allclose(constants(result.model.graph)["w"].ravel(), [0.5, -1.25, -0.75, -2, 0, 0], rtol=1e-5)


LEFT = {
    "no scale for each": conv(
        grid="float s = {0.3}, int8 z = {0}",
    ).replace(" <axis = 0>", ""),
    "lack an opposite": conv(
        ", int8 lo = {-8}, int8 hi = {7}", clip="k = Clip(q, lo, hi)", weight=WEIGHT.replace("0.75", "-2.5")
    ),
    "Gemm has alpha": conv(
        weight="float[2,3] w = {0.5, 0.75, -0.3, -1.25, 2, 0.1}", nodes="c = Gemm <alpha = 0.5> (xd, d)"
    )
    .replace("axis = 0", "axis = 1")
    .replace(",4,4]", "]"),
    "not constant": conv(nodes="g2 = Neg(g) c = Conv(xd, d)").replace("(c, g,", "(c, g2,"),
}


@pytest.mark.parametrize("reason", LEFT)
def test_left_alone_with_the_reason(reason: str) -> None:
    result = FoldQuantizedBatchnorm().run(parse(LEFT[reason]))
    assert not result.changed
    assert reason in result.remarks[0].message


@pytest.mark.parametrize(
    "nodes", ["[conv] c = Conv(xd, w)", "c = Conv(xd, d) e = Relu(c)"], ids=["float weight", "read elsewhere"]
)
def test_other_nodes_are_none_of_its_business(nodes: str) -> None:
    result = FoldQuantizedBatchnorm().run(parse(conv(nodes=nodes)))
    assert (result.changed, result.remarks) == (False, ())


def test_powers_of_two_stay() -> None:
    model = parse(conv(grid=POWERS))
    for node in model.graph.node[2:4]:
        entry = node.metadata_props.add()
        entry.key, entry.value = qdq.SCALE_BITS, "1"
    result = FoldQuantizedBatchnorm().run(model)
    assert not result.changed
    assert "powers of two" in result.remarks[0].message
