"""Where data flows, and which weighted layers are first and last."""

import pytest

from onnxqat.analysis import dataflow
from tests.backends.planning import graph


def data(text: str) -> set[str]:
    return {str(n.outputs[0].name) for n in dataflow.data_nodes(graph(text))}


def test_shape_arithmetic_is_no_data() -> None:
    text = """g (float[N,4] x) => (float[M,2] y) <float two = {2}, int64[1] axes = {0}> {
        s = Shape(x) f = Cast<to = 1>(s) h = Mul(f, two) i = Cast<to = 7>(h) r = Reshape(x, i) y = Relu(r) }"""
    assert data(text) == {"r", "y"}


def test_constants_are_no_data() -> None:
    text = """g (float[2] x) => (float[2] y) <float[2] a = {1, 2}, float[2] b = {3, 4}> {
        c = Add(a, b) y = Mul(x, c) }"""
    assert data(text) == {"y"}


@pytest.mark.parametrize(
    "tail",
    [
        "i = Cast<to = 7>(t) y = Gather(x, i)",
        "v, i = TopK(t, k) y = Gather(x, i)",
        "i = ArgMax<keepdims=0>(t) y = Gather(x, i)",
    ],
)
def test_what_only_chooses_indices_is_no_data(tail: str) -> None:
    assert data(f"g (float[4] x) => (float[M] y) <int64[1] k = {{1}}> {{ t = Mul(x, x) {tail} }}") == {"y"}


def test_the_condition_of_a_where_is_data() -> None:
    """It chooses value by value, unlike a parameter that is a size or an axis."""
    text = "g (float[4] x, float[4] z) => (float[4] y) { t = Mul(x, x) c = Less(t, z) y = Where(c, x, z) }"
    assert data(text) == {"c", "y"}


def test_the_largest_values_are_data() -> None:
    found = data("g (float[4] x) => (float[1] y) <int64[1] k = {1}> { t = Mul(x, x) v, i = TopK(t, k) y = Relu(v) }")
    assert found == {"t", "v", "y"}


def test_a_cast_to_float_passes_data_on() -> None:
    assert data("g (float[4] x) => (float16[4] y) { t = Mul(x, x) y = Cast<to = 10>(t) }") == {"t", "y"}


def test_what_an_inner_graph_reads_is_data() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) { t = Mul(x, x)
        y = If(c) <then_branch = a () => (float[2] r) { r = Relu(t) }, else_branch = b () => (float[2] s) { s = Neg(t) }> }"""
    assert data(text) == {"t", "r", "s", "y"}


def test_what_nothing_reads_is_no_data() -> None:
    assert data("g (float[2] x) => (float[2] y) { t = Mul(x, x) y = Relu(x) }") == {"y"}


MATMULS = "g (float[2,2] x, float[2,2] z) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}>"


@pytest.mark.parametrize(
    ("body", "ends"),
    [
        ("a = MatMul(x, w) b = MatMul(a, w) y = MatMul(b, w)", {"a", "y"}),
        ("a = MatMul(x, w) b = MatMul(z, w) c = Add(a, b) d = MatMul(c, w) y = Relu(d)", {"a", "b", "d"}),
        ("a = MatMul(x, w) b = MatMul(a, w) c = MatMul(a, w) y = Add(b, c)", {"a", "b", "c"}),
        ("a = MatMul(x, w) b = MatMul(a, w) c = MatMul(b, w) y = Add(c, a)", {"a", "c"}),
        ("a = MatMul(x, z) b = MatMul(a, w) c = MatMul(b, w) d = MatMul(c, w) y = MatMul(d, z)", {"b", "d"}),
        ("y = MatMul(x, w)", {"y"}),
        ("y = MatMul(x, z)", set()),
    ],
)
def test_first_and_last(body: str, ends: set[str]) -> None:
    found = dataflow.first_and_last(graph(f"{MATMULS} {{ {body} }}"))
    assert {str(n.outputs[0].name) for n in found} == ends


def test_first_and_last_in_branches() -> None:
    found = dataflow.first_and_last(
        graph(
            f"""{MATMULS.replace("z)", "z, bool c)")} {{
            t = If(c) <then_branch = yes () => (float[2,2] r) {{ a = MatMul(x, w) b = MatMul(a, w) r = MatMul(b, w) }},
                       else_branch = no () => (float[2,2] s) {{ s = MatMul(x, w) }}>
            u = Relu(t) v = MatMul(u, w) y = MatMul(v, w) }}"""
        )
    )
    assert {str(n.outputs[0].name) for n in found} == {"a", "s", "y"}


def test_walks_go_through_if() -> None:
    made = graph(
        """g (float[2,2] x, bool c) => (float[2,2] y, float[2,2] z) {
        y = If(c) <then_branch = yes () => (float[2,2] r) { a = Sigmoid(x) r = Transpose(a) },
                   else_branch = no () => (float[2,2] s) { b = Relu(x) s = Relu(b) }>
        u = If(c) <then_branch = yes2 () => (float[2,2] r2) { r2 = Sigmoid(x) },
                   else_branch = no2 () => (float[2,2] s2) { s2 = Relu(x) }>
        v = Concat<axis = 0>(u, x) z = Relu(v) }"""
    )
    inside = {v.name: v for g in dataflow.reached_graphs(made) for n in g for v in n.outputs}
    assert {name for name, v in inside.items() if dataflow.leads_to_output(v)} == {"a", "r", "s", "y", "z"}
    assert {name for name, v in inside.items() if dataflow.leaves_model(v)} == {"r", "s", "y", "z"}
    joined = graph(
        """g (float[2,2] x, bool c) => (float[4,2] y) {
        u = If(c) <then_branch = yes () => (float[2,2] r) { r = Sigmoid(x) },
                   else_branch = no () => (float[2,2] s) { s = Relu(x) }>
        y = Concat<axis = 0>(u, x) }"""
    )
    assert dataflow.joins_probabilities(joined[1])


@pytest.mark.parametrize(
    ("tail", "leads"),
    [
        ("y = Identity(t)", True),
        ("u = Transpose(t) v = Concat<axis = 0>(u, x) y = Reshape(v, s)", True),
        ("y = Relu(t)", False),
        ("u = Relu(t) v = Transpose(t) y = Add(u, v)", False),
    ],
)
def test_leads_to_output(tail: str, leads: bool) -> None:
    found = graph(f"g (float[2,2] x) => (float[M,K] y) <int64[2] s = {{1, -1}}> {{ t = Sigmoid(x) {tail} }}")
    assert dataflow.leads_to_output(found[0].outputs[0]) is leads


def test_a_concat_of_probabilities_that_leave_the_graph() -> None:
    made = graph(
        """g (float[1,2,4] x) => (float[1,4,6] y, float[1,4,4] z) {
            s = Sigmoid(x) c = Concat<axis = 1>(x, s, x) t = Transpose<perm = [0, 2, 1]>(c) y = Identity(t)
            d = Concat<axis = 1>(x, x) z = Transpose<perm = [0, 2, 1]>(d) }"""
    )
    nodes = {n.outputs[0].name: n for n in made}
    assert dataflow.joins_probabilities(nodes["c"])
    assert not dataflow.joins_probabilities(nodes["d"])
