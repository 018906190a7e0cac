"""``passes check`` names the promise that a pass breaks, and each of them can be broken."""

from pathlib import Path

import pytest

from onnxqat.errors import UsageError
from onnxqat.pipeline import check

HEAD = "import numpy as np\nimport onnx_ir as ir\nfrom onnxqat.extend import Pass, Rewrite\n"
RELUS = """
def {name}(model):
    for body in (model.graph, *model.functions.values()):
        for node in list(body.all_nodes()):
            if node.op_type == "Relu":
                {edit}
"""


def broken(tmp_path: Path, name: str, text: str) -> dict[str, str]:
    path = tmp_path / f"{name}.py"
    path.write_text(HEAD + text, encoding="utf-8")
    return {f.name: f.message for f in check.check(str(path)).findings if not f.passed}


@pytest.mark.parametrize(
    ("name", "edit", "promise", "said"),
    [
        ("other_numbers", 'node.op_type = "Abs"', "numbers", "differs by up to"),
        ("no_such_operator", 'node.op_type = "NoSuchOperator"', "structure", "NoSuchOperator"),
        ("always", 'node.name = f"{node.name}x"', "second run", "changed the result again"),
        ("never", "pass", "applies", "none of 3 models"),
        ("fails", "1 / 0", "structure", "ZeroDivisionError"),
    ],
)
def test_a_broken_promise(name: str, edit: str, promise: str, said: str, tmp_path: Path) -> None:
    found = broken(tmp_path, name, RELUS.format(name=name, edit=edit))
    assert said in found[promise]
    places = {"in an If", "in a function"} if promise != "applies" else set()
    assert set(found) == {promise} | places


def test_a_pass_that_forgets_subgraphs_scope(tmp_path: Path) -> None:
    text = """
def main_graph_names(model):
    for node in model.graph.all_nodes():
        if node.op_type == "Relu" and node.graph is not model.graph:
            node.op_type = "Abs"
        elif node.op_type == "Relu":
            node.name = "relu"
"""
    assert set(broken(tmp_path, "main_graph_names", text)) == {"in an If"}


def test_the_tolerance_is_that_of_the_file(tmp_path: Path) -> None:
    text = """
EXAMPLES = ("g (float[2] x) => (float[2] y) { a = Relu(x) y = Sigmoid(a) }",)
def nearly(model):
    for body in (model.graph, *model.functions.values()):
        for node in list(body.all_nodes()):
            if node.op_type == "Relu":
                node.op_type, node.attributes["alpha"] = "LeakyRelu", ir.AttrFloat32("alpha", 1e-6)
"""
    assert "0 is accepted" in broken(tmp_path, "nearly", text)["numbers"]
    assert broken(tmp_path, "nearly_too", "TOLERANCE = 1e-5\n" + text.replace("nearly", "nearly_too")) == {}


def test_the_input_stays(tmp_path: Path) -> None:
    text = """
class Impolite(Pass):
    def run(self, model, context=None):
        model.graph.node[0].name = "touched"
        return super().run(model, context)

    def rewrite(self, model, context):
        return Rewrite(False)
"""
    assert "caller's model" in broken(tmp_path, "impolite", text)["input"]


@pytest.mark.parametrize("name", ["lift-constants", "matmul-bias-to-gemm"])
def test_passes_of_onnxqat(name: str) -> None:
    assert check.check(name).passed


def test_a_pass_that_needs_arguments() -> None:
    with pytest.raises(UsageError, match="without arguments"):
        check.check("derive-bias")
