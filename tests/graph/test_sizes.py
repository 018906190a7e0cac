"""Tensors that a file makes too large are refused by name, and those of usual networks are not."""

import pytest

from onnxqat.errors import ModelError
from onnxqat.graph import io, sizes
from tests.passes.checks import parse

COMPUTED = """g (float[1,4] x) => (float[1,4] y) <int64[1] n = {SIZE}> {
    c = ConstantOfShape(n) r = ReduceSum <keepdims = 0> (c) y = Add(x, r) }"""

REFUSED = {
    "constant": (COMPUTED.replace("{SIZE}", "{33554433}"), "'c'"),
    "shape": (
        """g (float[1,4] x) => (float[1,4] y) <int64[1] n = {16777217}> {
        s = Shape(x) c = Tile(s, n) r = ReduceMax <keepdims = 0> (c) f = Cast <to = 1> (r) y = Add(x, f) }""",
        "'c'",
    ),
    "input": ("g (float[40000,40000] x) => (float[40000,40000] y) { y = Relu(x) }", "input 'x'"),
    "resize": (
        """g (float[1,1,4,4] x) => (float y) <float[4] s = {1, 1, 20000, 20000}> {
        wide = Resize(x, "", s) y = ReduceMax <keepdims = 0> (wide) }""",
        "'wide'",
    ),
}


@pytest.mark.parametrize(("text", "named"), REFUSED.values(), ids=REFUSED)
def test_too_large(text: str, named: str) -> None:
    with pytest.raises(ModelError, match=named) as caught:
        sizes.check(io.load(parse(text)), "m.onnx")
    assert caught.value.code == "model-too-large"


def test_at_the_limit() -> None:
    text = COMPUTED.replace("{SIZE}", "{33554432}")
    model = io.load(parse(text))
    sizes.check(model, "m.onnx")
    assert model.graph[0].outputs[0].shape is None, "what was inferred is no part of the model"


def test_sums() -> None:
    model = io.load(parse("g (float[N,4] x) => (float[N,4] y) <float[4] w = {1, 2, 3, 4}> { y = Add(x, w) }"))
    assert sizes.weights_of(model) == 16
    assert sizes.tensors_of(model) == sizes.TensorSizes(32, True)
    given = io.load(parse("g (float[N,4] x) => (float[M,4] y) { y = Relu(x) }"))
    assert sizes.weights_of(given) == 0
    assert sizes.tensors_of(given, {"N": 3}) == sizes.TensorSizes(48, False)
