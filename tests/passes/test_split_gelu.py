"""split-gelu: the operator as its parts, where the target's opsets do not have it."""

import onnx
import pytest

from onnxqat.backends import schema
from onnxqat.deployment.deploy import deploy_form
from onnxqat.graph import io, query
from onnxqat.insertion.insert import insert_qdq
from onnxqat.passes._setting import Setting
from onnxqat.passes.split_gelu import SplitGelu
from tests.backends.planning import edges, plan, weight
from tests.passes.checks import check_pass, in_function, in_if, run_checked

HEADER = '<ir_version: 9, opset_import: ["" : 20]> '
NET = f"""{HEADER}g (float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w = {weight(2, 2, 1, 1)}> {{
    c = Conv(x, w) h = Gelu FORM (c) y = Conv(h, w) }}"""
ERF = ["Div", "Erf", "Add", "Mul", "Mul"]
TANH = ["Mul", "Mul", "Mul", "Add", "Mul", "Tanh", "Add", "Mul", "Mul"]


@pytest.mark.parametrize(("form", "parts"), [("", ERF), ('<approximate = "tanh">', TANH)])
def test_the_same_numbers(form: str, parts: list[str]) -> None:
    given = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(NET.replace("FORM", form)))
    result = run_checked(SplitGelu(), given, atol=1e-6)
    assert [node.op_type for node in result.model.graph.node] == ["Conv", *parts, "Conv"]
    assert result.model.graph.node[-1].input[0] == "h"
    for wrap in (in_if, in_function):
        run_checked(SplitGelu(), wrap(given), atol=1e-6)


def test_another_type_is_left_alone() -> None:
    check_pass(SplitGelu(), HEADER + "g (float16[2,3] x) => (float16[2,3] y) { y = Gelu(x) }", None)


@pytest.mark.parametrize("form", ["", '<approximate = "tanh">'])
def test_it_stays_in_float_as_a_whole_and_the_target_reads_the_file(form: str) -> None:
    text = NET.replace("FORM", form)
    assert set(edges(plan(text, "rknn"))) == {"x", "w", "c", "h", "y"}
    made = insert_qdq(onnx.parser.parse_model(text), "rknn", random_data=True, fast=True).model
    table = schema.load("rknn")
    assert query.opset(deploy_form(io.load(made), table, [])) <= table.opset[1]


def test_a_target_that_reads_the_operator_keeps_it() -> None:
    made = insert_qdq(onnx.parser.parse_model(NET.replace("FORM", "")), "qnn-htp", random_data=True, fast=True).model
    assert "Gelu" in {node.op_type for node in made.graph.node}


def test_a_table_with_a_row_keeps_it() -> None:
    assert set(edges(plan(NET.replace("FORM", ""), "esp-dl"))) == {"x", "w", "c", "h", "y"}
    setting = Setting(schema.load("esp-dl"))
    assert SplitGelu.for_backend(setting) is None
