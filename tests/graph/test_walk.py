"""Walks see every scope once."""

import onnx
import onnx_ir as ir
import pytest

from onnxqat.graph import build, io, walk
from tests.passes.checks import in_function, in_if, parse

TEXT = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { t = Mul(x, w) y = Relu(t) }"


def nested() -> onnx.ModelProto:
    """A function whose body is an If."""
    return in_function(in_if(parse(TEXT)))


def test_every_scope_and_node_is_seen_once() -> None:
    model = io.load(nested())
    scopes = list(walk.scopes(model))
    assert [type(s).__name__ for s in scopes] == ["Graph", "Function", "Graph", "Graph"]
    assert [n.op_type for n in walk.nodes(model)] == ["body", "If", "Mul", "Relu", "Mul", "Relu"]


def test_values_are_those_of_the_scope_itself() -> None:
    model = io.load(parse(TEXT))
    assert [v.name for v in walk.values(model.graph)] == ["x", "w", "t", "y"]
    assert [v.name for v in walk.values(io.load(in_if(parse(TEXT))).graph)] == ["choose", "x", "y"]


def test_scope_of_a_function_node_takes_constants() -> None:
    model = io.load(in_function(parse(TEXT)))
    names = build.Names(model)
    function = next(iter(model.functions.values()))
    relu = next(n for n in function if n.op_type == "Relu")
    assert walk.scope_of(relu) is function
    made = build.constant(walk.scope_of(relu), names.fresh("k"), relu_input(), before=relu)
    assert made.producer() is not None
    assert walk.scope_of(model.graph[0]) is model.graph


def relu_input():
    return ir.tensor([1.0, 2.0]).numpy()


def test_a_clone_does_not_answer_for_the_original() -> None:
    model = io.load(in_function(parse(TEXT)))
    list(walk.scopes(model))
    copy = model.clone()
    list(walk.scopes(copy))
    node = next(iter(copy.functions.values()))[-1]
    assert walk.scope_of(node) is next(iter(copy.functions.values()))


def test_a_node_without_a_graph() -> None:
    with pytest.raises(ValueError, match="no graph"):
        walk.scope_of(ir.Node("", "Relu", [None]))
