"""inline-functions: functions worth quantizing become part of the graphs that call them."""

import onnx
import pytest

from onnxqat.passes.inline_functions import InlineFunctions
from tests.passes.checks import compare_graphs, compare_outputs, parse, run_checked

TWICE = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
g (float[2,2] x) => (float[2,2] y) { ["one"] t = local.f<alpha = 0.5>(x) ["two"] y = local.f(t) }
<domain: "local", opset_import: ["" : 17]> f <alpha: float = 0.25>(a) => (b) {
    w = Constant<value = float[2,2] {1, 2, 3, 4}>() m = MatMul(a, w) b = LeakyRelu<alpha: float = @alpha>(m) }
"""
PLAIN = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
g (float[2] x) => (float[2] y) { y = local.f(x) }
<domain: "local", opset_import: ["" : 17]> f (a) => (b) { t = Relu(a) b = Neg(t) }
"""


def test_each_call_gets_a_copy() -> None:
    result = run_checked(InlineFunctions(["MatMul"]), parse(TWICE), 0.0)
    assert result.changed
    assert not result.model.functions
    assert "one" in result.remarks[0].nodes
    compare_graphs(
        result.model.graph,
        parse(
            """g (float[2,2] x) => (float[2,2] y) {
            w = Constant<value = float[2,2] {1, 2, 3, 4}>() m = MatMul(x, w) t = LeakyRelu<alpha = 0.5>(m)
            w_2 = Constant<value = float[2,2] {1, 2, 3, 4}>() m_2 = MatMul(t, w_2) y = LeakyRelu<alpha = 0.25>(m_2) }"""
        ).graph,
    )


@pytest.mark.parametrize("text", [TWICE, PLAIN])
def test_functions_without_such_an_operator_stay(text: str) -> None:
    result = run_checked(InlineFunctions(["Conv"]), parse(text), 0.0)
    assert not result.changed
    assert len(result.model.functions) == 1


def test_every_function() -> None:
    result = run_checked(InlineFunctions(), parse(PLAIN), 0.0)
    compare_graphs(result.model.graph, parse("g (float[2] x) => (float[2] y) { t = Relu(x) y = Neg(t) }").graph)


def test_functions_that_call_functions() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    g (float[2,2] x) => (float[2,2] y) { y = local.outer(x) }
    <domain: "local", opset_import: ["" : 17, "local" : 1]> outer (a) => (b) { t = local.inner(a) b = local.other(t) }
    <domain: "local", opset_import: ["" : 17]> inner (a) => (b) { b = MatMul(a, a) }
    <domain: "local", opset_import: ["" : 17]> other (a) => (b) { b = Neg(a) }"""
    result = run_checked(InlineFunctions(["MatMul"]), parse(text), 0.0)
    assert [(n.domain, n.op_type) for n in result.model.graph.node] == [("", "MatMul"), ("local", "other")]
    assert [f.name for f in result.model.functions] == ["other"]


def test_names_that_are_taken_everywhere() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    g (float[2] x, bool c) => (float[2] y, float[2] m) {
        m = Abs(x)
        y = If(c) <then_branch = p () => (float[2] r) { t = Exp(m) r = local.f(t) },
                   else_branch = q () => (float[2] s) { b = local.f(m) s = Neg(b) }> }
    <domain: "local", opset_import: ["" : 17]> f (a) => (b) { t = Neg(a) m = Abs(t) x = Mul(m, m) b = Add(x, t) }"""
    result = run_checked(InlineFunctions(), parse(text), 0.0)
    assert [v.name for v in result.model.graph.output] == ["y", "m"]
    assert [v.name for v in result.model.graph.input] == ["x", "c"]


def test_an_output_that_is_an_input() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    g (float[2] x) => (float[2] y, float[2] z) { y, z = local.f(x) }
    <domain: "local", opset_import: ["" : 17]> f (a) => (a, b) { b = Neg(a) }"""
    model = onnx.parser.parse_model(text)
    result = InlineFunctions().run(model)
    onnx.checker.check_model(result.model, full_check=True)
    compare_outputs(
        parse("g (float[2] x) => (float[2] y, float[2] z) { y = Identity(x) z = Neg(x) }"),
        result.model,
        0.0,
    )


def test_metadata_of_call_and_body() -> None:
    model = parse(PLAIN)
    model.graph.node[0].metadata_props.add(key="who", value="call")
    model.graph.node[0].metadata_props.add(key="layer", value="7")
    model.functions[0].node[0].metadata_props.add(key="who", value="body")
    model.functions[0].node[0].doc_string = "first"
    nodes = InlineFunctions().run(model).model.graph.node
    assert [{p.key: p.value for p in n.metadata_props} for n in nodes] == [
        {"who": "body", "layer": "7"},
        {"who": "call", "layer": "7"},
    ]
    assert nodes[0].doc_string == "first"


def test_another_opset_is_left_with_the_reason() -> None:
    model = onnx.parser.parse_model(PLAIN.replace('f (a) => (b)', "f (a) => (b)").replace(
        '<domain: "local", opset_import: ["" : 17]>', '<domain: "local", opset_import: ["" : 18]>'))  # fmt: skip
    result = InlineFunctions().run(model)
    assert not result.changed
    assert "imports version 18 of operator set '', the model 17" in result.remarks[0].message
