"""strip-qdq: the float graph comes back."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxqat.graph import edit
from onnxqat.passes.strip_qdq import StripQdq
from onnxqat.types import QType
from tests.passes.checks import check_pass, compare_graphs, node_text, parse
from tests.passes.quantized import float_model, quantized

NARROW = QType("int8", -7, 7)


@pytest.mark.parametrize("weight", [QType("int8", -128, 127), QType("int8", -127, 127), NARROW, QType("int4", -8, 7)])
@pytest.mark.parametrize("per_channel", [True, False])
def test_inserted_quantizers_leave_no_trace(weight: QType, per_channel: bool) -> None:
    result = StripQdq().run(quantized(weight, per_channel=per_channel)).model
    onnx.checker.check_model(result, full_check=True)
    before = float_model().graph
    assert [node_text(n) for n in result.graph.node] == [node_text(n) for n in before.node]
    assert [n.name for n in result.graph.node] == [n.name for n in before.node]
    assert list(result.graph.input) == list(before.input)
    assert list(result.graph.output) == list(before.output)
    constants = {i.name: numpy_helper.to_array(i) for i in result.graph.initializer}
    originals = {i.name: numpy_helper.to_array(i) for i in before.initializer}
    assert constants.keys() == originals.keys()
    np.testing.assert_array_equal(constants["w"], originals["w"])
    assert np.abs(constants["b"] - originals["b"]).max() <= 0.05 * 2.4 / 2
    assert not result.metadata_props
    assert not StripQdq().run(result).changed


def test_pairs_collapse() -> None:
    before = """g (float[4] x) => (float[4] y) <float s = {0.1}, int8 z = {0}> {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) e = DequantizeLinear(q, s, z)
        t = Add(d, e) y = Relu(t) }"""
    result = StripQdq().run(parse(before)).model
    compare_graphs(result.graph, parse("g (float[4] x) => (float[4] y) { t = Add(x, x) y = Relu(t) }").graph)


def test_quantized_input_that_is_an_output_becomes_an_identity() -> None:
    before = """g (float[4] x) => (float[4] y) <float s = {0.1}, int8 z = {0}> {
        q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"""
    result = StripQdq().run(parse(before)).model
    assert [node_text(n) for n in result.graph.node] == ["y = Identity<>(x)"]
    assert result.graph.node[0].metadata_props[0].value == "strip-qdq"


def test_stored_weights_of_strangers_take_the_name_behind_them() -> None:
    before = """g (float[N,2] x) => (float[N,2] y) <int8[2,2] wq = {1, 2, 3, 4}, float s = {0.5}, int8 z = {1}> {
        w = DequantizeLinear(wq, s, z) y = MatMul(x, w) }"""
    result = StripQdq().run(parse(before)).model
    after = "g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {0, 0.5, 1, 1.5}> { y = MatMul(x, w) }"
    compare_graphs(result.graph, parse(after).graph)


def test_dynamic_scales_are_left_alone() -> None:
    check_pass(
        StripQdq(),
        """g (float[4] x, float s) => (float[4] y) <int8 z = {0}> {
        q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }""",
        None,
        inside_function="skip",
        inside_if="skip",
    )


def test_pairs_in_a_row_in_front_of_a_wide_node() -> None:
    pair = "q{0} = QuantizeLinear({1}, s, z) d{0} = DequantizeLinear(q{0}, s, z)"
    pairs = " ".join([pair.format(0, "x"), *(pair.format(i, f"d{i - 1}") for i in range(1, edit.WIDE))])
    joined = ", ".join(f"d{i}" for i in range(edit.WIDE))
    before = f"""g (float[4] x) => (float[N] y) <float s = {{0.1}}, int8 z = {{0}}> {{
        {pairs} y = Concat<axis = 0>({joined}) }}"""
    result = StripQdq().run(parse(before)).model
    assert [node_text(n) for n in result.graph.node] == [f"y = Concat<axis=0>({', '.join(['x'] * edit.WIDE)})"]
    assert not result.graph.initializer
