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


def test_what_is_moved_does_not_count_as_a_place_or_a_size() -> None:
    """Queries are picked by indices behind layers with large numbers and expanded to sizes up to an open end."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,N,4] x) => (float[A,B,C] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] end = {9223372036854775807}, int64[1] many = {1000}> {
        s = Shape(x) k = Slice(s, one, end) z = Slice(s, zero, one) t = Concat <axis = 0> (z, k)
        a = Mul(many, many) b = Mul(a, a) f = Cast <to = 1> (b) y = Expand(f, t) }"""
    assert propagation.is_safe(onnx.parser.parse_model(text))


GROWING = {
    "concat": ("k{i} = Concat <axis = 0> (k{b}, k{b})", "r = Identity(k{n})"),
    "floats": ("f{i} = Concat <axis = 0> (f{b}, f{b})", "r = Cast <to = 7> (f{n})"),
    "range": ("k{i} = Add(k{b}, k{b})", "e = Squeeze(k{n}) r = Range(zero, e, step)"),
    "shape": ("k{i} = Mul(k{b}, k{b})", "r = ConstantOfShape <value = int64[1] {{7}}> (k{n})"),
    "function": ("k{i} = local.twice(k{b})", "r = Identity(k{n})"),
}


@pytest.mark.parametrize("kind", GROWING)
def test_vectors_that_grow_step_by_step(kind: str) -> None:
    step, last = GROWING[kind]
    times = 5 if kind == "shape" else 40

    def grown(count: int) -> onnx.ModelProto:
        steps = " ".join(step.format(i=i + 1, b=i) for i in range(count))
        return onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["": 17, "local": 1]> g (float[2] x) => (float[N] y)
            <int64 zero = {{0}}, int64 step = {{1}}, int64[1] k0 = {{3}}, float[1] f0 = {{3}}> {{
                {steps} {last.format(n=count)} f = Cast <to = 1> (r) y = Add(x, f) }}
            <domain: "local", opset_import: ["": 17]> twice (a) => (b) {{ b = Concat <axis = 0> (a, a) }}"""
        )

    assert propagation.is_safe(grown(2))
    assert not propagation.is_safe(grown(times))
    shapes.infer(ir.serde.deserialize_model(grown(times)))


def test_many_long_vectors() -> None:
    nodes = " ".join(f"k{i + 1} = Neg(k{i})" for i in range(50))
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) <int64[1] one = {{7}}, int64[1] n = {{100000}}> {{
        k0 = Tile(one, n) {nodes} y = Identity(x) }}"""
    assert not propagation.is_safe(onnx.parser.parse_model(text))
