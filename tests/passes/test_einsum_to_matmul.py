"""einsum-to-matmul: sums of products over one index."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnxqat
from onnxqat.passes.einsum_to_matmul import EinsumToMatmul
from tests.bridge.integer import networks
from tests.passes.checks import check_pass, run_checked

HEADER = '<ir_version: 8, opset_import: ["" : 17]> '
SIZES = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 2, "f": 3}


def einsum(equation: str) -> onnx.ModelProto:
    given, _, result = equation.replace(" ", "").partition("->")
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIZES[letter] for letter in term])
        for name, term in zip("xyz", given.split(","), strict=False)
    ]
    node = helper.make_node("Einsum", [value.name for value in values], ["out"], equation=equation)
    output = helper.make_tensor_value_info("out", TensorProto.FLOAT, [SIZES[letter] for letter in result])
    graph = helper.make_graph([node], "g", values, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_attention() -> None:
    check_pass(
        EinsumToMatmul(),
        HEADER
        + 'g (float[2,3,4] q, float[2,5,4] k) => (float[2,3,5] y) { y = Einsum<equation = "bqd,bkd->bqk">(q, k) }',
        HEADER
        + "g (float[2,3,4] q, float[2,5,4] k) => (float[2,3,5] y) "
        + "{ y_Transpose = Transpose<perm = [0, 2, 1]>(k) y = MatMul(q, y_Transpose) }",
        atol=1e-5,
        inside_function="left",
    )


@pytest.mark.parametrize(
    "equation",
    [
        *("ab,bc->ac", "ab,cb->ca", "ab, bc -> ac", "ab,b->a", "b,ab->a", "abc,cd->abd", "cd,abc->bad"),
        *("abc,abd->acd", "abcd,abed->abce", "abc,dc->adb", "abc,dec->abde", "abcd,aed->abce", "abcd,aefd->acefb"),
    ],
)
def test_products(equation: str) -> None:
    """Each is compared with the operator in onnxruntime."""
    result = run_checked(EinsumToMatmul(), einsum(equation), 1e-5)
    assert [node.op_type for node in result.model.graph.node].count("MatMul") == 1
    assert "Einsum" not in [node.op_type for node in result.model.graph.node]


@pytest.mark.parametrize(
    ("equation", "reason"),
    [
        ("ab->ba", "it has not two operands"),
        ("ab,bc,cd->ad", "it has not two operands"),
        ("ab,ab->ab", "it sums over no index or several"),
        ("abc,bc->a", "it sums over no index or several"),
        ("abe,bc->ac", "it sums over an index of one operand"),
    ],
)
def test_what_is_no_product_of_matrices_stays(equation: str, reason: str) -> None:
    result = run_checked(EinsumToMatmul(), einsum(equation), 0.0)
    assert not result.changed
    assert [remark.message for remark in result.remarks] == [f"Einsum stays: {reason}"]


def test_a_network_with_einsum_runs_in_integers() -> None:
    text = (
        HEADER
        + """g (float[N, 6, 8] x) => (float[N, 6, 6] y)
    <float[8, 8] wq, float[8, 8] wk> {
        q = Einsum<equation = "bic,dc->bid">(x, wq)
        k = Einsum<equation = "oc,bjc->bjo">(wk, x)
        s = Einsum<equation = "bid,bjd->bij">(q, k)
        y = Relu(s)
    }"""
    )
    x = np.random.default_rng(0).standard_normal((12, 6, 8)).astype(np.float32)
    model = networks.quantized(networks.with_weights(text), x)
    integers = onnxqat.to_integer(model)
    assert integers.float_operators() == []
    assert [kernel for _, kernel in integers.kernels] == ["Matrix"] * 3
    np.testing.assert_array_equal(integers.run({"x": x}).outputs["y"], networks.session(model, x)[0])
