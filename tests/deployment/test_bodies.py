"""Nodes in the bodies of If and Loop: listed where the compiler says how it runs them, else a remark says that it does not."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from onnxqat.deployment import base_compiler, float_reasons, graph_nodes
from onnxqat.graph.build import LEFT_FLOAT
from onnxqat.linting.explain import explain
from tests.bridge.integer.test_bodies import IF, LOOP, image, model


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (IF, {"Conv->r": "QLinearConv", "Sin->a": "Sin", "Conv->k": "Conv", "ReduceMean->m": "ReduceMean"}),
        (LOOP, {"Conv->r": "QLinearConv", "Sin->e": "Sin", "Loop->y": "Loop"}),
    ],
    ids=["If", "Loop"],
)
def test_onnxruntime_says_how_nodes_in_bodies_run(text: str, expected: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(text), path)
    compiler = base_compiler.load("onnxruntime-cpu")
    nodes = compiler.compile_and_run(path, [{"x": image(0.5)}]).nodes
    found = {f"{n.op_type}->{n.name}": n for n in nodes}
    assert {name: found[name.replace("r", "c") if name == "Conv->r" else name].detail for name in expected} == expected
    assert "If->y" not in found
    assert list(graph_nodes.unlisted(nodes, model(text), "onnxruntime-cpu")) == []


def test_a_compiler_that_does_not_say_is_told_of() -> None:
    (taken, other) = graph_nodes.unlisted([], model(IF), "some-compiler")
    assert taken.message.startswith("some-compiler does not say how it runs")
    assert {"c", "a"} <= set(taken.nodes)
    assert set(other.nodes) == {"k", "b"}


def test_reasons_are_looked_for_in_the_body() -> None:
    held = model(IF)
    conv = held.graph.node[-1].attribute[1].g.node[0]
    node = base_compiler.NodeResult("k", "Conv", "float", "Conv")
    compiler = base_compiler.load("onnxruntime-cpu")
    (found,) = float_reasons.explained([node], held, compiler)
    assert (
        found.why
        == "its input 'x' carries no Q/DQ; its float constant 'w' carries no Q/DQ; its output 'k' is read by Identity without Q/DQ"
    )
    conv.metadata_props.add(key=LEFT_FLOAT, value="the user wanted it")
    (found,) = float_reasons.explained([node], held, compiler)
    assert found.why == "placement left it in float: the user wanted it"


def test_explain_names_nodes_in_bodies_of_loops() -> None:
    found = {f.node: f.reason for f in explain(model(LOOP.replace("Conv(da, dw)", "Conv(da, w)"))).float_nodes}
    assert found["Conv->c"] == "'w' carries no pair"
    assert "Conv->c" not in {f.node for f in explain(model(LOOP)).float_nodes}
