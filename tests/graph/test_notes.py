"""Notes in metadata are hints: where a value of the file contradicts one, the value is taken."""

import onnx
import pytest

from onnxqat.graph import io, notes, qdq
from tests.passes.checks import parse

STORED = """g (float[2] x) => (float[2] y) <int8[2] c = {CODES}, float s = {0.5}, int8 z = {0}> {
    d = DequantizeLinear(c, s, z) y = Add(x, d) }"""
LAYER = """g (float[1,2] x) => (float[1,2] y) <float xs = {SCALE}, uint8 xz = {0}, float ws = {0.25}, int8 wz = {0},
    float[2,2] w = {1, 2, 3, 4}, float[2] b = {0.25, -0.125}> {
    q = QuantizeLinear(x, xs, xz) d = DequantizeLinear(q, xs, xz)
    v = QuantizeLinear(w, ws, wz) e = DequantizeLinear(v, ws, wz) y = Gemm(d, e, b) }"""


def noted(text: str, **by_operator: dict[str, str]) -> onnx.ModelProto:
    model = parse(text)
    for node in model.graph.node:
        for key, value in by_operator.get(node.op_type, {}).items():
            node.metadata_props.add(key=key, value=value)
    return model


@pytest.mark.parametrize(("scale", "bits"), [("0.5", 2), ("0.375", 2), ("0.51", None), ("0.4375", None)])
def test_significant_bits_of_a_scale(scale: str, bits: int | None) -> None:
    stamp = {notes.SCALE_BITS: "2"}
    model = noted(LAYER.replace("SCALE", scale), QuantizeLinear=stamp, DequantizeLinear=stamp)
    (found,) = [q for q in qdq.quantizers(io.load(model)) if q.role == "activation"]
    assert found.qparams.scale_bits == bits


@pytest.mark.parametrize(("codes", "grid"), [("{-8, 7}", (-8, 7)), ("{-9, 7}", (-128, 127)), ("{0, 8}", (-128, 127))])
def test_grid_of_stored_codes(codes: str, grid: tuple[int, int]) -> None:
    stamp = {notes.QUANT_MIN: "-8", notes.QUANT_MAX: "7"}
    (found,) = qdq.quantizers(io.load(noted(STORED.replace("{CODES}", codes), DequantizeLinear=stamp)))
    assert (found.qparams.qtype.quant_min, found.qparams.qtype.quant_max) == grid


@pytest.mark.parametrize(("scale", "snapped"), [("0.5", 1), ("0.51", 0)])
def test_bias_on_the_grid_of_its_accumulator(scale: str, snapped: int) -> None:
    model = io.load(noted(LAYER.replace("SCALE", scale), Gemm={notes.BIAS_GRID: "in0*in1"}))
    assert len(list(qdq.snapped_biases(model, qdq.quantizers(model)))) == snapped
