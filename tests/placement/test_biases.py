"""Which biases are quantized, and why the rest stays float."""

from pathlib import Path

import pytest

from tests.backends.planning import edges, plan, table_file, weight

W = f"float[2,2,1,1] w = {weight(2, 2, 1, 1)}"


@pytest.mark.parametrize(
    ("node", "bias"),
    [
        ("Gemm(x, v, c)", "float[3] c = {1, 2, 3}"),
        ("Gemm<transB = 1>(x, u, c)", "float[3] c = {1, 2, 3}"),
        ("Gemm(x, v, c)", "float[1] c = {1}"),
        ("Gemm(x, v, c)", "float[1,3] c = {1, 2, 3}"),
        ("Gemm(x, v, c)", "float[2,1] c = {1, 2}"),
    ],
)
def test_bias_of_gemm(node: str, bias: str) -> None:
    text = f"""g (float[2,2] x) => (float[2,3] y) <float[2,3] v = {weight(2, 3)}, float[3,2] u = {weight(3, 2)}, {bias}> {{
        y = {node} }}"""
    found = plan(text)
    messages = [r.message for r in found.remarks if "stays float" in r.message]
    quantized = [edge for many in edges(found).values() for edge in many if edge.rule == "Gemm bias"]
    by_row = bias.startswith("float[2,1]")
    assert len(quantized) == (0 if by_row else 1)
    reason = "shape (2, 1) is not one value an output channel"
    assert messages == ([f"bias 'c' of y_Gemm stays float: {reason}"] if by_row else [])


def test_a_computed_bias() -> None:
    text = f"g (float[1,2,4,4] x, float[2] c) => (float[1,2,4,4] y) <{W}> {{ y = Conv(x, w, c) }}"
    assert [r.message for r in plan(text).remarks] == ["bias 'c' of y_Conv stays float: it is computed"]


def test_a_table_with_float_biases(tmp_path: Path) -> None:
    text = f"g (float[1,2,4,4] x) => (float[1,2,4,4] y) <{W}, float[2] bias = {{0.1, -0.1}}> {{ y = Conv(x, w, bias) }}"
    table = table_file(tmp_path, "backend: t\nextends: tensorrt\ntypes: {bias: {dtype: float, derive: null}}\n")
    found = plan(text, table)
    assert "bias" not in edges(found)
    assert any("the backend wants it so" in r.message for r in found.remarks)
