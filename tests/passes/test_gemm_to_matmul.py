"""gemm-to-matmul: the product by itself."""

import pytest

from onnxqat.passes.gemm_to_matmul import GemmToMatmul
from tests.passes.checks import check_pass, parse


def test_product_and_sum() -> None:
    check_pass(
        GemmToMatmul(),
        "g (float[N,2] x) => (float[N,3] y) <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 2, 3}> { y = Gemm(x, w, b) }",
        """g (float[N,2] x) => (float[N,3] y) <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 2, 3}> {
        y_product = MatMul(x, w) y = Add(y_product, b) }""",
        atol=1e-5,
        inside_if="skip",
        inside_function="skip",
    )


def test_a_transposed_weight_is_stored_as_it_is_read() -> None:
    check_pass(
        GemmToMatmul(),
        "g (float[N,2] x) => (float[N,3] y) <float[3,2] w = {1, 2, 3, 4, 5, 6}> { y = Gemm <transB = 1> (x, w) }",
        "g (float[N,2] x) => (float[N,3] y) <float[2,3] w = {1, 3, 5, 2, 4, 6}> { y = MatMul(x, w) }",
        atol=1e-5,
        inside_if="skip",
        inside_function="skip",
    )


@pytest.mark.parametrize("text", ["Gemm <alpha = 2.0> (x, w)", "Gemm <transA = 1> (x, w)", "Gemm(x, z)"])
def test_what_stays(text: str) -> None:
    model = f"g (float[2,2] x, float[2,2] z) => (float[2,2] y) <float[2,2] w = {{1, 2, 3, 4}}> {{ y = {text} }}"
    result = GemmToMatmul().run(parse(model))
    assert not result.changed
    assert "stays" in result.remarks[0].message
