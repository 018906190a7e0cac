"""unique-names: every node has a name of its own."""

import onnx
import pytest

from onnxqat.passes.unique_names import UniqueNames
from tests.passes.checks import check_pass, compare_outputs, parse

UNNAMED = "g (float[N] x) => (float[N] y) { t = Relu(x) y = Neg(t) }"


def test_unnamed_nodes_are_named_after_their_output() -> None:
    result = check_pass(UniqueNames(), UNNAMED, UNNAMED)
    assert [n.name for n in result.model.graph.node] == ["t_Relu", "y_Neg"]


def test_named_nodes_are_left_alone() -> None:
    check_pass(UniqueNames(), "g (float[N] x) => (float[N] y) { [a] t = Relu(x) [b] y = Neg(t) }", None)


def test_second_node_of_a_name_gets_another() -> None:
    model = parse("g (float[N] x) => (float[N] y) { [a] t = Relu(x) [b] y = Neg(t) }")
    model.graph.node[1].name = "a"
    result = UniqueNames().run(model)
    assert [n.name for n in result.model.graph.node] == ["a", "a_1"]
    assert any("'a'" in r.message for r in result.remarks)
    onnx.checker.check_model(result.model)


def test_values_of_sibling_bodies() -> None:
    text = """g (float[N] x, bool c) => (float[N] y) { ["i"] y = If(c) <
        then_branch = t () => (float[N] r) { ["a"] k = Neg(x) ["b"] r = Abs(k) },
        else_branch = e () => (float[N] r) { ["d"] k = Exp(x) ["e"] r = Abs(k) }> }"""
    result = UniqueNames().run(text_model := parse(text))
    graphs = {a.name: a.g for a in result.model.graph.node[0].attribute}
    assert [n.output[0] for n in graphs["then_branch"].node] == ["k", "r"]
    assert [n.output[0] for n in graphs["else_branch"].node] == ["k_1", "r_1"]
    onnx.checker.check_model(result.model, full_check=True)
    assert not UniqueNames().run(result.model).changed
    for seed in (0, 1):
        compare_outputs(text_model, result.model, 0.0, seed)


@pytest.mark.parametrize("name", ["swift_f0", "ppocr_v2_cls"])
def test_real_models(shared, name: str) -> None:
    result = UniqueNames().run(shared / "data" / "models" / f"{name}.onnx")
    names = [n.name for n in result.model.graph]
    assert all(names)
    assert len(set(names)) == len(names)
