"""Pairs inside SiLUs that are written for HTP alone."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxqat.deployment.workarounds.silu_pairs import SiluPairs
from tests.backends.planning import proto
from tests.passes.checks import check_pass, in_function, in_if, run_checked

HEAD = """g (float[1,4] x, float[1,4] other) => (float[1,4] y%s) <float s = {0.125}, uint8 z = {64}> {
    xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z) %s
    mq = QuantizeLinear(m, s, z) y = DequantizeLinear(mq, s, z) }"""


@pytest.mark.parametrize("product", ["Mul(xd, g)", "Mul(g, xd)"])
def test_the_sigmoid_gets_a_pair(product: str) -> None:
    model = proto(HEAD % ("", f"g = Sigmoid(xd) m = {product}"))
    made = run_checked(SiluPairs(), model, atol=0.125).model  # a step of the pair behind the product
    for wrap in (in_if, in_function):
        assert run_checked(SiluPairs(), wrap(model), atol=0.125).changed
    kinds = [node.op_type for node in made.graph.node]
    assert kinds == ["QuantizeLinear", "DequantizeLinear", "Sigmoid", *kinds[:2], "Mul", *kinds[:2]]
    quantize, dequantize, mul = made.graph.node[3:6]
    assert quantize.input[0] == "g"
    assert set(mul.input) == {"xd", dequantize.output[0]}
    values = {t.name: onnx.numpy_helper.to_array(t) for t in made.graph.initializer}
    assert values[quantize.input[1]] == np.float32(2.0**-8)
    assert values[quantize.input[2]] == 0


def test_pairs_of_another_domain_get_one_of_it() -> None:
    model = proto(HEAD % ("", "g = Sigmoid(xd) m = Mul(xd, g)"))
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    for node in model.graph.node:
        node.domain = "com.microsoft" if node.op_type.endswith("Linear") else ""
    made = run_checked(SiluPairs(), model, atol=0.125).model
    assert [node.domain for node in made.graph.node if node.op_type.endswith("Linear")] == ["com.microsoft"] * 6


@pytest.mark.parametrize(
    ("outputs", "body"),
    [
        ("", "g = Sigmoid(xd) m = Mul(other, g)"),
        ("", "g = Sigmoid(xd) h = Mul(xd, g) m = Add(h, g)"),
        ("", "g = Sigmoid(other) m = Mul(other, g)"),
        (", float[1,4] g", "g = Sigmoid(xd) m = Mul(xd, g)"),
        ("", "g = Sigmoid(xd) h = Mul(xd, g) m = Relu(h)"),
    ],
    ids=["another tensor", "read twice", "not quantized", "a result of the model", "product not quantized"],
)
def test_others_are_left_alone(outputs: str, body: str) -> None:
    model = proto(HEAD % (outputs, body))
    check_pass(SiluPairs(), model, None)
