"""fold-known-shapes: sizes are constants where the file states them."""

import numpy as np
import onnx_ir as ir
import pytest

from onnxqat.backends import schema
from onnxqat.graph import io, shapes
from onnxqat.insertion.prepare import prepare
from onnxqat.passes.fold_known_shapes import FoldKnownShapes
from onnxqat.passes.lift_constants import LiftConstants
from onnxqat.placement.table_overrides import Overrides
from tests.passes.checks import check_pass, compare_outputs, parse


def test_a_shape_of_known_dimensions() -> None:
    check_pass(
        FoldKnownShapes(),
        "g (float[2,3] x, float[6] z) => (float[2,3] y) { s = Shape(x) y = Reshape(z, s) }",
        "g (float[2,3] x, float[6] z) => (float[2,3] y) <int64[2] s = {2, 3}> { y = Reshape(z, s) }",
        inside_function="left",
    )


@pytest.mark.parametrize(
    "picked",
    [
        "s = Shape(x) d = Gather(s, last)",
        "s = Shape(x) d = Slice(s, last, far)",
        "s = Shape(x) d = Slice(s, last, far, zero, one)",
        "d = Shape <start = -1> (x)",
    ],
)
def test_a_known_size_beside_an_unknown_batch(picked: str) -> None:
    constants = "int64[1] last = {-1}, int64[1] far = {9223372036854775807}, int64[1] zero = {0}, int64[1] one = {1}"
    text = f"g (float[N,3] x, float[3] z) => (float[3] y) <{constants}> {{ {picked} y = Reshape(z, d) }}"
    result = FoldKnownShapes().run(parse(text))
    assert [n.op_type for n in result.model.graph.node] == ["Reshape"]
    compare_outputs(parse(text), result.model, 0)


@pytest.mark.parametrize(
    "picked",
    [
        "s = Shape(x) d = Gather(s, i)",
        "d = Shape <end = 1> (x)",
        "d = Shape(x)",
        "u = NonZero(x) d = Shape(u)",
        "s = Shape(x) d = Slice(s, i, i)",
    ],
)
def test_what_is_not_known_stays(picked: str) -> None:
    text = f"g (float[N,3] x, int64[1] i) => (int64[d] y) {{ {picked} y = Neg(d) }}"
    check_pass(FoldKnownShapes(), text, None)


def test_the_factor_of_attention_is_a_constant() -> None:
    """As torch's older exporter writes it: from the size of a head, once for the queries and once for the keys."""
    text = """g (float[N,5,16] q) => (float[N,5,16] y)
        <int64[1] last = {-1}, int64[1] far = {9223372036854775807}, float one = {1}> {
        s = Shape(q) d = Slice(s, last, far) f = Cast <to = 1> (d) r = Sqrt(f) i = Div(one, r) k = Sqrt(i)
        y = Mul(q, k) }"""
    model = io.load(parse(text))
    shapes.infer(model)
    result = LiftConstants().run(FoldKnownShapes().run(model).model)
    (factor,) = result.model.graph.initializers.values()
    np.testing.assert_allclose(factor.const_value.numpy(), [16**-0.25], rtol=1e-6)


def test_sizes_that_follow_from_folded_ones() -> None:
    """Modules for attention reshape to sizes that they compute with Mod, which shape inference does not carry on."""
    text = """g (float[1,32] x) => (float[16,2] y) <int64 one = {1}, int64 five = {5}, int64[1] zero = {0}, int64[1] rest = {-1}> {
        s = Shape(x) k = Gather(s, one) m = Mod(k, five) u = Unsqueeze(m, zero) t = Concat <axis = 0> (u, rest)
        r = Reshape(x, t) z = Shape(r) n = Gather(z, one) v = Unsqueeze(n, zero) w = Concat <axis = 0> (v, rest)
        y = Reshape(r, w) }"""
    model, table = ir.from_proto(parse(text)), schema.load("rknn")
    prepare(model, table, Overrides(), [])
    assert [node.op_type for node in model.graph] == ["Reshape", "Reshape"]
    assert model.graph.node(0).outputs[0].shape == ir.Shape([2, 16])
