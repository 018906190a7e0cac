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


LAST = "int64[1] last = {-1}"


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ("n = Neg(two) d = Gather(n, last) y = Neg(d)", LAST),
        ("d = Shape(two) y = Add(two, two)", LAST),
        ("s = Shape(x) d = Gather(s, many) y = Neg(d)", f"int64[65] many = {{{', '.join(['1'] * 65)}}}"),
        ("n = NonZero(x) r = Reshape(n, two) s = Shape(r) d = Gather(s, last) y = Neg(d)", LAST),
    ],
    ids=["no shape is picked from", "nobody reads it", "more than a shape has", "its tensor has no known rank"],
)
def test_what_is_no_size_stays(nodes: str, constants: str) -> None:
    text = f"g (float[N,3] x, int64[2] two) => (int64[d] y) <{constants}> {{ {nodes} }}"
    assert not FoldKnownShapes().run(parse(text)).changed


def test_a_place_outside_of_the_shape_stays() -> None:
    """onnxruntime refuses it when it runs."""
    text = "g (float[N,3] x) => (int64[1] y) <int64[1] far = {2}> { s = Shape(x) d = Gather(s, far) y = Neg(d) }"
    assert not FoldKnownShapes().run(parse(text)).changed


@pytest.mark.parametrize("sizes", ["s = local.Shape(x) d = Gather(s, last)", "s = Shape(x) d = local.Gather(s, last)"])
def test_a_function_of_the_same_name_is_another(sizes: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[N,3] x) => (int64[d] y) <{LAST}> {{ {sizes} y = Neg(d) }}
        <domain: "local", opset_import: ["" : 17]> Shape (x) => (y) {{ s = Shape(x) y = Neg(s) }}
        <domain: "local", opset_import: ["" : 17]> Gather (x, i) => (y) {{ s = Gather(x, i) y = Neg(s) }}"""
    assert not FoldKnownShapes().run(parse(text)).changed


def test_slices_of_the_first_opset_stay() -> None:
    text = """<ir_version: 4, opset_import: ["" : 9]>
        g (float[N,3] x) => (int64[d] y) { s = Shape(x) d = Slice <starts = [1], ends = [2]> (s) y = Neg(d) }"""
    assert not FoldKnownShapes().run(parse(text)).changed


def test_a_slice_without_axes_stays() -> None:
    text = """g (float[N,3] x) => (int64[d] y) <int64[1] one = {1}, int64[1] two = {2}> {
        s = Shape(x) d = Slice(s, one, two, , one) y = Neg(d) }"""
    check_pass(FoldKnownShapes(), text, None)


@pytest.mark.parametrize(("output", "reader"), [("s", ""), ("m", "m = Neg(s)")])
def test_a_shape_that_others_read_stays(output: str, reader: str) -> None:
    text = f"""g (float[N,3] x, float[3] z) => (float[3] y, int64[2] {output}) <{LAST}> {{
        s = Shape(x) d = Gather(s, last) y = Reshape(z, d) {reader} }}"""
    result = FoldKnownShapes().run(parse(text))
    assert [node.op_type for node in result.model.graph.node] == ["Shape", "Reshape", *(["Neg"] if reader else [])]
    compare_outputs(parse(text), result.model, 0)


def test_sizes_that_leave_the_graph_stay() -> None:
    text = "g (float[2,3] x, float[6] z) => (float[2,3] y, int64[2] s) { s = Shape(x) y = Reshape(z, s) }"
    check_pass(FoldKnownShapes(), text, None)


def test_a_shape_of_the_graph_around_a_branch_stays() -> None:
    text = f"""g (bool c, float[N,3] x, float[3] z) => (float[3] y) <{LAST}> {{
        s = Shape(x)
        y = If (c) <
            then_branch = t () => (float[3] a) {{ d = Gather(s, last) a = Reshape(z, d) }},
            else_branch = e () => (float[3] b) {{ b = Neg(z) }}
        >
    }}"""
    result = FoldKnownShapes().run(parse(text))
    assert result.changed
    compare_outputs(parse(text), result.model, 0)


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
