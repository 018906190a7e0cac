"""Quantizers are found however a tool writes them, and written as the bridge expects them."""

import numpy as np
import onnx
import pytest

from onnxqat import numerics
from onnxqat.graph import io, qdq
from onnxqat.graph.quantizer import Quantizer
from onnxqat.types import QType
from tests.passes.checks import in_function, in_if, ort_run, parse, random_feeds
from tests.passes.quantized import quantized

PAIR = """g (float[4] x) => (float[4] y) <float s = {0.1}, uint8 z = {3}> {
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Relu(d) }"""


def find(text: str) -> list[Quantizer]:
    return qdq.quantizers(io.load(parse(text)))


def test_pair() -> None:
    (found,) = find(PAIR)
    assert (found.tensor, found.role, found.stored) == ("x", "activation", False)
    assert (found.qparams.qtype, found.qparams.axis) == (QType("uint8", 0, 255), None)
    assert (found.qparams.scale, found.qparams.zero_point) == (np.float32(0.1), 3)
    assert [n.op_type for n in found.nodes] == ["QuantizeLinear", "DequantizeLinear"]
    assert [v.name for v in found.scales] == ["s"]


@pytest.mark.parametrize(
    ("opset", "scale", "attribute", "precision"),
    [
        (21, "float16", "", "float32"),
        (23, "float", "", "float32"),
        (23, "float16", "", "float16"),
        (23, "bfloat16", "", "bfloat16"),
        (23, "float", "<precision = 10>", "float16"),
        (23, "float16", "<precision = 1>", "float32"),
    ],
)
def test_the_type_of_the_quotient_is_the_attribute_or_that_of_the_scale_from_opset_23_on(
    opset: int, scale: str, attribute: str, precision: str
) -> None:
    (found,) = find(f"""<ir_version: 11, opset_import: ["" : {opset}]> g ({scale}[4] x) => ({scale}[4] y)
        <{scale} s = {{1}}, uint8 z = {{3}}> {{
        q = QuantizeLinear {attribute} (x, s, z) y = DequantizeLinear(q, s, z) }}""")
    assert found.qparams.precision == precision


@pytest.mark.parametrize("wrap", [in_if, in_function])
def test_every_scope_is_searched(wrap) -> None:
    assert qdq.quantizers(io.load(wrap(parse(PAIR))))


VARIANTS = {
    "one element": (PAIR.replace("float s", "float[1] s").replace("uint8 z", "uint8[1] z"), 1, QType("uint8", 0, 255)),
    "no zero point": (
        "g (float[4] x) => (float[4] y) <float s = {0.1}> { q = QuantizeLinear(x, s) y = DequantizeLinear(q, s) }",
        1,
        QType("uint8", 0, 255),
    ),
    "two readers": (
        PAIR.replace("y = Relu(d)", "e = DequantizeLinear(q, s, z) y = Add(d, e)"),
        2,
        QType("uint8", 0, 255),
    ),
    "clip": (
        PAIR.replace("uint8 z", "uint8 lo = {0}, uint8 hi = {15}, uint8 z").replace(
            "d = DequantizeLinear(q, s, z)", "c = Clip(q, lo, hi) d = DequantizeLinear(c, s, z)"
        ),
        1,
        QType("uint8", 0, 15),
    ),
}


@pytest.mark.parametrize(("text", "readers", "qtype"), VARIANTS.values(), ids=VARIANTS)
def test_variants(text: str, readers: int, qtype: QType) -> None:
    (found,) = find(text)
    assert len(found.dequantize) == len(found.outputs) == readers
    assert found.qparams.qtype == qtype
    assert found.qparams.scale.shape == ()


NONE = {
    "dynamic scale": PAIR.replace("<float s = {0.1}, ", "<").replace("(float[4] x)", "(float[4] x, float s)"),
    "codes are an output": PAIR.replace("=> (float[4] y)", "=> (float[4] y, uint8[4] q)"),
    "codes read elsewhere": PAIR.replace("y = Relu(d)", "k = Cast <to = 1> (q) y = Add(d, k)"),
    "scales differ": PAIR.replace("<float s", "<float r = {0.2}, float s").replace("(q, s, z)", "(q, r, z)"),
    "negative scale": PAIR.replace("{0.1}", "{-0.1}"),
}


@pytest.mark.parametrize("text", NONE.values(), ids=NONE)
def test_no_quantizer(text: str) -> None:
    assert find(text) == []


def test_an_axis_beyond_the_rank_is_no_axis_where_there_is_one_scale() -> None:
    # onnxruntime's quantizer writes axis 1 for biases with one element, which have one axis.
    text = PAIR.replace("float s = {0.1}", "float[1] s = {0.1}").replace("uint8 z = {3}", "uint8[1] z = {3}")
    text = text.replace("QuantizeLinear(x", "QuantizeLinear <axis = 1> (x").replace("(q, s", "<axis = 1> (q, s")
    [found] = find(text.replace("float[4]", "float[1]"))
    assert found.qparams.scale.shape == ()


@pytest.mark.parametrize("grid", [QType("int8", -128, 127), QType("int8", -7, 7), QType("int4", -8, 7)], ids=str)
@pytest.mark.parametrize("per_channel", [True, False])
def test_inserted_quantizers_are_found_again(grid: QType, per_channel: bool) -> None:
    found = {q.tensor: q for q in qdq.quantizers(io.load(quantized(grid, per_channel=per_channel)))}
    assert {name: q.role for name, q in found.items()} == {
        "x": "activation",
        "w": "weight",
        "b_DequantizeLinear_Output": "bias",
        "y_unquantized": "activation",
    }
    assert found["w"].qparams.qtype == grid
    assert found["w"].qparams.axis == (0 if per_channel else None)
    bias = found["b_DequantizeLinear_Output"]
    assert bias.derived_from == (found["x"], found["w"])


def test_the_reference_gives_the_runtimes_bits() -> None:
    model = parse(PAIR.replace("y = Relu(d)", "y = Identity(d)").replace("[4]", "[64]"))
    (found,) = qdq.quantizers(io.load(model))
    feeds = random_feeds(model, 0)
    feeds["x"] *= 20
    expected = numerics.fake_quantize(feeds["x"], found.qparams)
    np.testing.assert_array_equal(ort_run(model, feeds)["y"], expected)


def test_is_quantized() -> None:
    assert qdq.is_quantized(io.load(parse(PAIR)))
    assert not qdq.is_quantized(io.load(parse("g (float[4] x) => (float[4] y) { y = Relu(x) }")))


def test_a_bias_with_more_scales_than_its_weight_is_no_product() -> None:
    """A damaged file, such as one whose weight scales were cut off."""
    text = """g (float[1,2,4,4] x, float[2,2,1,1] w) => (float[1,2,4,4] y)
        <float s = {0.5}, uint8 z = {0}, int8[2,2,1,1] c = {1,2,3,4}, float[2] ws = {1,2}, int8[2] wz = {0,0},
         int32[3] b = {1,2,3}, float[3] bs = {1,2,3}, int32[3] bz = {0,0,0}> {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear<axis=0>(c, ws, wz)
        e = DequantizeLinear<axis=0>(b, bs, bz) y = Conv(d, v, e) }"""
    bias = next(q for q in qdq.quantizers(io.load(parse(text))) if q.role == "bias")
    assert bias.derived_from is None


@pytest.mark.parametrize(("factor", "derived"), [(1.0, True), (1 + 1e-7, True), (1 + 1e-4, False), (1.1, False)])
def test_a_bias_is_derived_where_its_scale_is_the_product_but_for_its_last_bit(factor: float, derived: bool) -> None:
    """A module that derives another scale than the file has would compute other biases than the file."""
    text = f"""g (float[1,2,4,4] x) => (float[1,2,4,4] y)
        <float s = {{0.3}}, uint8 z = {{0}}, int8[2,2,1,1] c = {{1,2,3,4}}, float ws = {{0.7}}, int8 wz = {{0}},
         int32[2] b = {{1,2}}, float bs = {{{float(np.float32(0.3) * np.float32(0.7) * np.float32(factor))!r}}},
         int32 bz = {{0}}> {{
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear(c, ws, wz)
        e = DequantizeLinear(b, bs, bz) y = Conv(d, v, e) }}"""
    bias = next(q for q in qdq.quantizers(io.load(parse(text))) if q.role == "bias")
    assert (bias.derived_from is not None) == derived


@pytest.mark.parametrize(
    ("attributes", "scales", "readable"),
    [
        ("axis=0", "float[2] s = {1,2}, int8[2] z = {0,0}", True),
        ("axis=0", "float[3] s = {1,2,3}, int8[3] z = {0,0,0}", False),
        ("axis=1, block_size=2", "float[2,2] s = {1,2,3,4}, int8[2,2] z = {0,0,0,0}", True),
        ("axis=1, block_size=2", "float[2,1] s = {1,2}, int8[2,1] z = {0,0}", False),
        ("axis=4", "float[2] s = {1,2}, int8[2] z = {0,0}", False),
    ],
)
def test_scales_that_do_not_fit_the_tensor_make_no_quantizer(attributes: str, scales: str, readable: bool) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 21]> g (float[1] x) => (float[2,3] y)
        <int8[2,3] c = {{1,2,3,4,5,6}}, {scales}> {{ d = DequantizeLinear<{attributes}>(c, s, z) y = Mul(d, x) }}"""
    assert len(qdq.quantizers(io.load(onnx.parser.parse_model(text)), every=True)) == readable
