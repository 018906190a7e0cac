"""What every pass must do, checked on one small model, inside an If body and inside a function."""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxqat.passes._base import Pass, PassResult
from onnxqat.pipeline import check
from onnxqat.pipeline.check import run_checked
from onnxqat.pipeline.numbers import compare_outputs, ort_run, random_feeds
from onnxqat.pipeline.wrapped import in_function, in_if

__all__ = ["compare_outputs", "in_function", "in_if", "ort_run", "random_feeds", "run_checked"]
Expect = Literal["same", "left", "skip"]


def parse(text: str | onnx.ModelProto) -> onnx.ModelProto:
    """ONNX text with or without its header; a model passes through."""
    return text if isinstance(text, onnx.ModelProto) else check.parse(text)


def check_pass(
    pass_: Pass,
    before: str | onnx.ModelProto,
    after: str | None,
    *,
    atol: float = 0.0,
    inside_if: Expect = "same",
    inside_function: Expect = "same",
) -> PassResult:
    """Apply `pass_` to `before` and compare with `after`; None: it must leave the model alone.

    Args:
        pass_: the pass.
        before: ONNX text or a model.
        after: ONNX text; names of nodes are compared where it has them.
        atol: largest difference of onnxruntime's outputs, graph optimization off.
        inside_if: whether the graph as an If body gives the same, is left alone, or is not tried.
        inside_function: the same for a model-local function.
    """
    model = parse(before)
    result = run_checked(pass_, model, atol)
    assert result.changed == (after is not None), result.remarks
    if after is not None:
        expected = parse(after)
        compare_graphs(result.model.graph, expected.graph)
        assert imports(result.model) == imports(expected)
    for wrap, expect in ((in_if, inside_if), (in_function, inside_function)):
        if expect != "skip":
            wrapped = wrap(model)
            inner = run_checked(pass_, wrapped, atol)
            assert inner.changed == (expect == "same" and after is not None), (wrap.__name__, inner.remarks)
            if inner.changed and after is not None:
                assert operators(body(inner.model)) == operators(list(parse(after).graph.node)), wrap.__name__
    return result


def imports(model: onnx.ModelProto) -> dict[str, int]:
    return {entry.domain: entry.version for entry in model.opset_import}


def compare_graphs(left: onnx.GraphProto, right: onnx.GraphProto) -> None:
    """Same inputs, outputs, constants and nodes in the same order."""
    assert [v.name for v in left.input] == [v.name for v in right.input]
    assert [v.name for v in left.output] == [v.name for v in right.output]
    mine, theirs = constants(left), constants(right)
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert (mine[name].dtype, mine[name].shape) == (theirs[name].dtype, theirs[name].shape), name
        np.testing.assert_allclose(
            mine[name].astype(np.float64), theirs[name].astype(np.float64), rtol=1e-6, atol=1e-6, err_msg=name
        )
    assert [node_text(n) for n in left.node] == [node_text(n) for n in right.node]
    for a, b in zip(left.node, right.node, strict=True):
        assert not b.name or a.name == b.name
        for x, y in zip(a.attribute, b.attribute, strict=True):
            if x.HasField("g"):
                compare_graphs(x.g, y.g)


def constants(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    return {i.name: numpy_helper.to_array(i) for i in graph.initializer}


def node_text(node: onnx.NodeProto) -> str:
    attributes = sorted(f"{a.name}={helper.get_attribute_value(a)}" for a in node.attribute if not a.HasField("g"))
    inputs = list(node.input)
    while inputs and not inputs[-1]:
        inputs.pop()
    return f"{', '.join(node.output)} = {node.domain}{node.op_type}<{', '.join(attributes)}>({', '.join(inputs)})"


def operators(nodes: list[onnx.NodeProto]) -> list[str]:
    return [n.op_type for n in nodes if n.op_type != "Constant"]


def body(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Nodes of the function, or of the first branch of the If."""
    if model.functions:
        return list(model.functions[0].node)
    return list(next(a.g for a in model.graph.node[-1].attribute if a.name == "then_branch").node)
