"""split-rms-normalization: the operator as its parts, where the target's opsets do not have it."""

import onnx
import pytest

from onnxqat.backends import schema
from onnxqat.deployment.deploy import deploy_form
from onnxqat.graph import io, query
from onnxqat.insertion.insert import insert_qdq
from onnxqat.passes._setting import Setting
from onnxqat.passes.split_rms_normalization import SplitRmsNormalization
from tests.backends.planning import edges, plan, weight
from tests.passes.checks import check_pass, in_function, in_if, run_checked

HEADER = '<ir_version: 10, opset_import: ["" : 23]> '
NET = f"""{HEADER}g (float[1,6,8] x) => (float[1,6,4] y) <float[8,8] w = {weight(8, 8)}, float[SIZE] s = SCALE,
    float[8,4] v = {weight(8, 4)}> {{ c = MatMul(x, w) h = RMSNormalization FORM (c, s) y = MatMul(h, v) }}"""
PARTS = ["Mul", "ReduceMean", "Add", "Sqrt", "Div", "Mul"]


def net(form: str = "", *scale: int) -> onnx.ModelProto:
    sizes = scale or (8,)
    text = NET.replace("FORM", form).replace("SCALE", weight(*sizes)).replace("SIZE", ",".join(map(str, sizes)))
    return onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))


@pytest.mark.parametrize(
    "given", [net(), net("<axis = 2, epsilon = 0.5>"), net("<axis = 1>", 6, 8), net("<axis = -2>", 6, 8)]
)
def test_the_same_numbers(given: onnx.ModelProto) -> None:
    result = run_checked(SplitRmsNormalization(), given, atol=1e-6)
    assert [node.op_type for node in result.model.graph.node] == ["MatMul", *PARTS, "MatMul"]
    assert result.model.graph.node[-1].input[0] == "h"
    for wrap in (in_if, in_function):
        run_checked(SplitRmsNormalization(), wrap(given), atol=1e-6)


def test_another_type_is_left_alone() -> None:
    text = "g (float16[2,3] x, float16[3] s) => (float16[2,3] y) { y = RMSNormalization(x, s) }"
    check_pass(SplitRmsNormalization(), HEADER + text, None)


def test_it_stays_in_float_as_a_whole_and_the_target_reads_the_file() -> None:
    assert set(edges(plan(net(), "rknn"))) == {"x", "w", "c", "h", "v", "y"}
    made = insert_qdq(net(), "rknn", random_data=True, fast=True).model
    table = schema.load("rknn")
    assert query.opset(deploy_form(io.load(made), table, [])) <= table.opset[1]


def test_a_target_that_reads_the_operator_keeps_it() -> None:
    assert SplitRmsNormalization.for_backend(Setting(schema.load("qnn-htp"))) is None
    made = insert_qdq(net(), "qnn-htp", random_data=True, fast=True).model
    assert "RMSNormalization" in {node.op_type for node in made.graph.node}
