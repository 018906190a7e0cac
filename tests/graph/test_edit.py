"""Edits keep names, order and outputs."""

import onnx
import pytest

from onnxqat.graph import build, edit, io, query, verify
from tests.passes.checks import node_text, parse


def nodes(model) -> list[str]:
    proto = io.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    verify.verify(model)
    return [node_text(n) for n in proto.graph.node]


BYPASSES = {
    "inner": ("t = Relu(x) u = Identity(t) y = Neg(u)", "u", ["t = Relu<>(x)", "y = Neg<>(t)"]),
    "output made by a node": ("t = Relu(x) y = Identity(t)", "y", ["y = Relu<>(x)"]),
    "output that is an input": ("t = Relu(x) y = Dropout(x)", "y", ["t = Relu<>(x)", "y = Identity<>(x)"]),
    "source read elsewhere": ("t = Relu(x) z = Neg(t) y = Identity(t)", "y", ["y = Relu<>(x)", "z = Neg<>(y)"]),
}


@pytest.mark.parametrize(("body", "name", "expected"), BYPASSES.values(), ids=BYPASSES)
def test_bypass(body: str, name: str, expected: list[str]) -> None:
    model = io.load(parse(f"g (float[2] x) => (float[2] y) {{ {body} }}"))
    node = next(n for n in model.graph if n.outputs[0].name == name)
    edit.bypass(node, node.inputs[0])
    assert nodes(model) == expected
    assert [v.name for v in model.graph.outputs] == ["y"]


def test_bypass_between_two_outputs_keeps_both() -> None:
    model = io.load(parse("g (float[2] x) => (float[2] t, float[2] y) { t = Relu(x) y = Dropout(t) }"))
    node = model.graph[1]
    edit.bypass(node, node.inputs[0])
    assert nodes(model) == ["t = Relu<>(x)", "y = Identity<>(t)"]


def test_an_output_takes_over_its_name() -> None:
    model = io.load(parse("g (float[2] x) => (float[2] y) { y = Relu(x) }"))
    names, old = build.Names(model), model.graph.outputs[0]
    added = build.node("Neg", [old], ["neg"], dtype=old.dtype, shape=old.shape)
    model.graph.append(added)
    edit.replace_output(model.graph, old, added.outputs[0])
    edit.take_over_name(names, old, added.outputs[0], "before")
    assert nodes(model) == ["y_before = Relu<>(x)", "y = Neg<>(y_before)"]


def test_remove_unused_goes_through_chains_and_inner_graphs() -> None:
    text = """g (float[2] x, bool b) => (float[2] y) <float[2] w = {1, 2}, float[2] v = {1, 2}> {
        dead = Mul(x, w) deader = Neg(dead)
        y = If (b) <then_branch = one () => (float[2] p) { q = Neg(v) p = Relu(x) },
                    else_branch = two () => (float[2] r) { r = Neg(x) }> }"""
    model = io.load(parse(text))
    removed = edit.remove_unused(model)
    assert {"w", "v"} <= set(removed)
    assert len(removed) == 5
    assert [n.op_type for n in model.graph] == ["If"]
    assert not model.graph.initializers
    verify.verify(model)


def test_rewire_while_iterating() -> None:
    model = io.load(parse("g (float[2] x, float[2] z) => (float[2] y) { t = Add(x, x) y = Mul(t, x) }"))
    x, z = model.graph.inputs
    edit.rewire(x.uses(), z)
    assert nodes(model) == ["t = Add<>(z, z)", "y = Mul<>(t, z)"]
    assert not x.uses()


def test_inputs_of_a_wide_node_are_exchanged_at_once() -> None:
    """A node below the limit is left to whoever removes the pairs; a value in several places is exchanged in each."""
    names = [f"x{i % 40}" for i in range(edit.WIDE)]
    inputs = ", ".join(f"float[2] x{i}" for i in range(40))
    text = f"g ({inputs}, float[2] z) => (float[n] y, float[m] t) {{ y = Concat<axis=0>({', '.join(names)}) t = Concat<axis=0>(x0, x1) }}"
    model = io.load(parse(text))
    *x, z = model.graph.inputs
    edit.rewire_wide({x[0]: z, x[3]: x[4]})
    exchanged = {"x0": "z", "x3": "x4"}
    wide, narrow = model.graph
    assert [v.name for v in wide.inputs] == [exchanged.get(name, name) for name in names]
    assert [v.name for v in narrow.inputs] == ["x0", "x1"]
    assert [(query.reads(v), len(v.uses())) for v in (x[0], x[3], x[4], z)] == [(1, 1), (0, 0), (4, 4), (2, 2)]
