"""unique-names: every node has a name of its own."""

import onnx
import pytest

from onnxqat.passes.unique_names import UniqueNames
from tests.passes.checks import check_pass, parse

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


@pytest.mark.parametrize("name", ["swift_f0", "ppocr_v2_cls"])
def test_real_models(shared, name: str) -> None:
    result = UniqueNames().run(shared / "data" / "models" / f"{name}.onnx")
    names = [n.name for n in result.model.graph]
    assert all(names)
    assert len(set(names)) == len(names)
