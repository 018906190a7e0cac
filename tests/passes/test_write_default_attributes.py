"""write-default-attributes: what a node leaves at its default is written out."""

import onnx
import pytest

from onnxqat.insertion.insert import insert_qdq
from onnxqat.passes.write_default_attributes import WriteDefaultAttributes
from tests.backends.planning import weight
from tests.passes.checks import check_pass


@pytest.mark.parametrize(
    ("node", "written"),
    [
        ("LeakyRelu(x)", "LeakyRelu<alpha = 0.01>(x)"),
        ("HardSigmoid(x)", "HardSigmoid<alpha = 0.2, beta = 0.5>(x)"),
        ("HardSigmoid<beta = 0.25>(x)", "HardSigmoid<beta = 0.25, alpha = 0.2>(x)"),
        ("LeakyRelu<alpha = 0.2>(x)", None),
        ("Relu(x)", None),
        ("Softmax(x)", None),  # not asked for
    ],
)
def test_defaults(node: str, written: str | None) -> None:
    text = "g (float[2,3] x) => (float[2,3] y) { y = %s }"
    check_pass(
        WriteDefaultAttributes(["LeakyRelu", "HardSigmoid", "Relu"]),
        text % node,
        None if written is None else text % written,
    )


def test_the_default_is_that_of_the_opset() -> None:
    text = '<ir_version: 4, opset_import: ["" : %d]> g (float[2,3] x) => (float[2,3] y) { y = Softmax%s(x) }'
    for opset, axis in ((9, 1), (13, -1)):
        check_pass(WriteDefaultAttributes(["Softmax"]), text % (opset, ""), text % (opset, f"<axis = {axis}>"))


def test_operators_that_the_table_leaves_in_float_have_theirs() -> None:
    """RKNN-Toolkit2 ends with a KeyError at a LayerNormalization without `epsilon`, which it computes in float."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[1,4,8] x) => (float[1,4,8] y)
        <float[8,8] w = {weight(8, 8)}, float[8] s = {{1, 1, 1, 1, 1, 1, 1, 1}}> {{
        h = MatMul(x, w) y = LayerNormalization(h, s) }}"""
    made = insert_qdq(onnx.parser.parse_model(text), "rknn", random_data=True, fast=True).model
    (normalization,) = (n for n in made.graph.node if n.op_type == "LayerNormalization")
    assert {a.name for a in normalization.attribute} == {"axis", "epsilon", "stash_type"}


def test_attributes_younger_than_what_the_compiler_reads() -> None:
    """RKNN-Toolkit2 refuses a GRU with `layout`, which it has from opset 14 on."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[3,1,2] x, float[1,6,2] w, float[1,6,2] r) => (float[3,1,1,2] y)
        { y = GRU%s(x, w, r) }"""
    before, after = (
        text % f"<hidden_size = 2{more}>" for more in ("", ', linear_before_reset = 0, direction = "forward"')
    )
    check_pass(WriteDefaultAttributes(oldest=13), before, after)
    younger = '<ir_version: 8, opset_import: ["" : 17]> g (float[1,4] x, float[4] s) => (float[1,4] y) { %s }'
    before, after = (
        younger % f"y = LayerNormalization{more}(x, s)"
        for more in ("", "<axis = -1, epsilon = 1e-05, stash_type = 1>")  # an operator that opset 13 has not
    )
    check_pass(WriteDefaultAttributes(oldest=13), before, after)
