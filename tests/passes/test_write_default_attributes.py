"""write-default-attributes: what a node leaves at its default is written out."""

import pytest

from onnxqat.passes.write_default_attributes import WriteDefaultAttributes
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
