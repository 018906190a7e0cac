"""Sums that only normalizations read stay float; sums that layers read do not."""

import pytest

from tests.backends.planning import edges, plan, weight

BLOCKS = """g (float[2,4,4] x, float[2,4,4] z) => (float[2,4,4] y) <float[4,4] w = NUMBERS, float[4] g1 = {1, 2, 1, 2},
    float[4] b = {1, 2, 3, 4}> {
    r0 = Add(x, z) n0 = LayerNormalization(r0, g1) f0 = MatMul(n0, w) m0 = Mul(f0, g1) r1 = Add(r0, m0)
    n1 = LayerNormalization(r1, g1) f1 = MatMul(n1, w) c1 = Add(f1, b) %s }""".replace("NUMBERS", weight(4, 4))


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "openvino-cpu", "tensorrt"])
def test_the_stream_is_on_no_grid(backend: str) -> None:
    found = set(edges(plan(BLOCKS % "r2 = Add(r1, c1) n2 = LayerNormalization(r2, g1) y = MatMul(n2, w)", backend)))
    assert not found & {"r0", "m0", "r1", "r2"}
    assert {"n0", "n1", "n2", "w"} <= found


def test_a_stream_that_layers_read_keeps_its_grid() -> None:
    body = "r2 = Add(r1, c1) n2 = LayerNormalization(r2, g1) s = MatMul(r2, w) y = Add(s, n2)"
    found = set(edges(plan(BLOCKS % body)))
    assert {"r1", "r2"} <= found
    assert "m0" in found


def test_a_backend_with_a_kernel_keeps_it_all(tmp_path_factory: pytest.TempPathFactory) -> None:
    table = tmp_path_factory.mktemp("table") / "table.yaml"
    row = "LayerNormalization: {in: [act, '-'], out: [act]}"
    table.write_text(f"backend: t\nextends: qnn-htp\nops: {{{row}}}\n", encoding="utf-8")
    found = set(edges(plan(BLOCKS % "r2 = Add(r1, c1) y = LayerNormalization(r2, g1)", str(table))))
    assert {"r0", "m0", "r1", "r2"} <= found
