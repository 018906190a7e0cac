"""Nodes that stay float although their table has a row."""

from tests.backends.planning import plan

TEXT = """g (float[1,4,4] x) => (float[1,4,4] y) <float one = {1}, int64[3] to = {1, 4, 4}> {
    e = Relu(x) a = Add(e, one) r = Reshape(a, to) l = READER(r) y = MatMul(l, x) }"""


def test_what_a_log_reads_is_on_no_grid() -> None:
    assert {"a", "r"} & {e.tensor for e in plan(TEXT.replace("READER", "Log")).edges} == set()
    assert "a" in {e.tensor for e in plan(TEXT.replace("READER", "Relu")).edges}
