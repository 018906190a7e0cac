"""eliminate-no-ops: what returns its input unchanged goes, and its neighbours meet."""

from __future__ import annotations

import pytest

from onnxqat.backends import schema
from onnxqat.graph import io
from onnxqat.passes._base import run_passes
from onnxqat.passes._setting import Setting
from onnxqat.passes.eliminate_no_ops import EliminateNoOps
from onnxqat.placement.table_overrides import Overrides, select
from tests.passes.checks import check_pass, parse

MAP = "g (float[N,2] x) => (float[N,2] y)"
REMOVED = {
    "identity": "Identity(r)",
    "dropout": "Dropout(r, , off)",
    "cast to the same type": "Cast <to = 1> (r)",
    "concat of one": "Concat <axis = 0> (r)",
    "sum of one": "Sum(r)",
}


@pytest.mark.parametrize("node", REMOVED.values(), ids=REMOVED)
def test_output_keeps_its_name(node: str) -> None:
    check_pass(
        EliminateNoOps(),
        f"{MAP} <bool off = {{0}}, float[N,2] r> {{ r = Relu(x) i = {node} y = Neg(i) }}",
        f"{MAP} <bool off = {{0}}> {{ i = Relu(x) y = Neg(i) }}",
        inside_function="skip",
    )


def test_graph_output_and_chain() -> None:
    check_pass(
        EliminateNoOps(),
        f"{MAP} {{ r = Relu(x) i = Identity(r) y = Identity(i) }}",
        f"{MAP} {{ y = Relu(x) }}",
    )


def test_input_that_others_read_keeps_its_name() -> None:
    check_pass(
        EliminateNoOps(),
        f"{MAP} {{ r = Relu(x) i = Identity(r) n = Neg(i) y = Add(n, r) }}",
        f"{MAP} {{ r = Relu(x) n = Neg(r) y = Add(n, r) }}",
    )


def test_graph_input() -> None:
    check_pass(
        EliminateNoOps(), f"{MAP} {{ i = Identity(x) y = Relu(i) }}", f"{MAP} {{ y = Relu(x) }}", inside_if="skip"
    )


def test_output_that_nothing_else_reads_once_the_others_are_gone() -> None:
    check_pass(
        EliminateNoOps(),
        f"{MAP} {{ r = Relu(x) y = Identity(r) unread = Identity(r) }}",
        f"{MAP} {{ y = Relu(x) }}",
        inside_if="skip",
    )


def test_input_that_the_caller_may_override() -> None:
    check_pass(
        EliminateNoOps(),
        "g (float[N,2] x, float[2] c) => (float[N,2] y) <float[2] c = {1, 2}> { i = Identity(c) y = Add(x, i) }",
        "g (float[N,2] x, float[2] c) => (float[N,2] y) <float[2] c = {1, 2}> { y = Add(x, c) }",
        inside_function="skip",
        inside_if="skip",
    )


def test_sequences_and_optional_values() -> None:
    check_pass(
        EliminateNoOps(),
        f"{MAP} <int64 first = {{0}}> {{ s = SequenceConstruct(x, x) i = Identity(s) o = Optional(i) j = Identity(o) "
        "t = OptionalGetElement(j) y = SequenceAt(t, first) }",
        f"{MAP} <int64 first = {{0}}> {{ i = SequenceConstruct(x, x) j = Optional(i) "
        "t = OptionalGetElement(j) y = SequenceAt(t, first) }",
        inside_function="skip",
    )


BODIES = """g (float[N,2] x, bool c) => (float[N,2] y) {{
    r = Relu(x) i = Identity(r)
    b = If (c) <then_branch = t () => (float[N,2] p) {{ {0} }}, else_branch = e () => (float[N,2] q) {{ {1} }}>
    y = Add(b, r) }}"""


def test_branches() -> None:
    """Outputs of a body keep their names, and have to be made in it; what it reads of the outer graph is read there."""
    check_pass(
        EliminateNoOps(),
        BODIES.format("n = Neg(i) p = Identity(n)", "u = Identity(i) q = Identity(u)"),
        BODIES.replace(" i = Identity(r)", "").format("p = Neg(r)", "q = Identity(r)"),
        inside_function="skip",
        inside_if="skip",
    )


def test_what_a_branch_returns_of_the_outer_graph_takes_a_name_on() -> None:
    check_pass(
        EliminateNoOps(),
        BODIES.replace("Add(b, r)", "Neg(b)").format("n = Neg(i) p = Identity(n)", "q = Identity(i)"),
        BODIES.replace("Add(b, r)", "Neg(b)")
        .replace("r = Relu(x) i = Identity(r)", "i = Relu(x)")
        .format("p = Neg(i)", "q = Identity(i)"),
        inside_function="skip",
        inside_if="skip",
    )


def test_loop_body() -> None:
    """What goes around unchanged is an input of the body."""
    text = """g (float[2] x) => (float[2] y) <int64 n = {{2}}, bool on = {{1}}> {{
        k, y = Loop (n, on, x, x) <body = b (int64 step, bool go, float[2] kept, float[2] s) =>
        (bool again, float[2] same, float[2] t) {{ again = Identity(go) same = Identity(kept) {} }}> }}"""
    check_pass(
        EliminateNoOps(),
        text.format("i = Identity(kept) a = Add(i, s) t = Identity(a)"),
        text.format("t = Add(kept, s)"),
        inside_function="skip",
        inside_if="skip",
    )


def test_outer_tensor_that_a_body_alone_reads_without_use() -> None:
    """Whatever order scopes have, a second run finds nothing."""
    branch = "<then_branch = t () => (float[N,2] p) {{ {0}p = Neg(x) }}, else_branch = e () => (float[N,2] q) {{ q = Abs(x) }}>"
    text = "g (float[N,2] x, bool c) => (float[N,2] y, float[N,2] z) {{ {1} y = If (c) " + branch + " }}"
    check_pass(
        EliminateNoOps(),
        text.format("unread = Identity(r) ", "r = Relu(x) z = Identity(r)"),
        text.format("", "z = Relu(x)"),
        inside_function="skip",
        inside_if="skip",
    )


LEFT = {
    "graph input as output": f"{MAP} {{ y = Identity(x) }}",
    "output twice": "g (float[N,2] x) => (float[N,2] r, float[N,2] y) { r = Relu(x) y = Identity(r) }",
    "constant": f"{MAP} <float[2] c = {{1, 2}}> {{ i = Identity(c) y = Add(x, i) }}",
    "mask is read": "g (float[N,2] x) => (float[N,2] y, bool[N,2] m) <bool off = {0}> "
    "{ r = Relu(x) i, m = Dropout(r, , off) y = Neg(i) }",
    "dropout that drops in training": f"{MAP} {{ r = Relu(x) i = Dropout(r) y = Neg(i) }}",
    "output that others read": f"{MAP[:-1]}, float[N,2] z) {{ r = Relu(x) y = Identity(r) z = Neg(r) }}",
    "other type": "g (float[N,2] x) => (float[N,2] y) <int32[N,2] c> { c = Cast <to = 6> (x) y = Cast <to = 1> (c) }",
}


@pytest.mark.parametrize("text", LEFT.values(), ids=LEFT)
def test_left_alone(text: str) -> None:
    check_pass(EliminateNoOps(), text, None, inside_function="skip", inside_if="skip")


def test_excluded_node_stays() -> None:
    model = parse(f"{MAP} {{ r = Relu(x) [same] i = Identity(r) y = Neg(i) }}")
    selection = select(io.load(model), Overrides(exclude=("same",)))
    result = run_passes(model, [EliminateNoOps(Setting(schema.load("onnxruntime-cpu"), selection=selection))])
    assert not result.changed


@pytest.mark.parametrize("mode", ["m", "on"], ids=["computed", "constant"])
def test_dropout_that_trains_stays(mode: str) -> None:
    """Its numbers are random, so that no session is asked."""
    text = f"g (float[N,2] x, bool m) => (float[N,2] y) <bool on = {{1}}> {{ r = Relu(x) i = Dropout(r, , {mode}) y = Neg(i) }}"
    assert not run_passes(parse(text), [EliminateNoOps()]).changed
