"""Vectors of whole numbers that nobody can write out do not keep shape inference from ending."""

import onnx.parser
import onnx_ir as ir
import pytest

from onnxqat.graph import propagation, shapes

HUGE = 10**12
MAKERS = {
    "input": "",
    "range": "r = Range (zero, n, one)",
    "expand": "r = Expand (one, size)",
    "tile": "r = Tile (ones, size)",
    "shape": "r = ConstantOfShape <value = int64[1] {7}> (size)",
}


def model(maker: str, size: int) -> onnx.ModelProto:
    given = f", int64[{size}] r" if maker == "input" else ""
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[2] x{given}) => (float[2] y)
        <int64 zero = {{0}}, int64 n = {{{size}}}, int64 one = {{1}}, int64[1] ones = {{1}}, int64[1] size = {{{size}}},
         int64[2] i = {{1, 2}}> {{ {MAKERS[maker]} k = Gather <axis = 0> (r, i) f = Cast <to = 1> (k) y = Add(x, f) }}"""
    )


@pytest.mark.parametrize("maker", MAKERS)
def test_inference_ends_and_small_ones_are_propagated(maker: str) -> None:
    assert propagation.is_safe(model(maker, 5))
    assert not propagation.is_safe(model(maker, HUGE))
    loaded = ir.serde.deserialize_model(model(maker, HUGE))
    shapes.infer(loaded)
    assert {v.name: v.shape for n in loaded.graph for v in n.outputs}["f"] == ir.Shape([2])


def test_ends_of_a_slice_are_no_sizes() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[3] y)
        <int64[1] first = {1}, int64[1] end = {9223372036854775807}> { y = Slice(x, first, end) }"""
    assert propagation.is_safe(onnx.parser.parse_model(text))
