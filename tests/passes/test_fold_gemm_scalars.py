"""fold-gemm-scalars: no Gemm has alpha or beta."""

from onnxqat.passes.fold_gemm_scalars import FoldGemmScalars
from tests.passes.checks import check_pass


def test_both_are_folded() -> None:
    check_pass(
        FoldGemmScalars(),
        """g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}, float[2] b = {1, -1}> {
        y = Gemm <alpha = 0.5, beta = 2.0, transB = 1> (x, w, b) }""",
        """g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {0.5, 1, 1.5, 2}, float[2] b = {2, -2}> {
        y = Gemm <transB = 1> (x, w, b) }""",
        atol=1e-6,
    )


def test_shared_weight_is_copied() -> None:
    check_pass(
        FoldGemmScalars(),
        """g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}> {
        t = Gemm(x, w) y = Gemm <alpha = 0.5> (t, w) }""",
        """g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}, float[2,2] w_scaled = {0.5, 1, 1.5, 2}> {
        t = Gemm(x, w) y = Gemm(t, w_scaled) }""",
        atol=1e-6,
    )


def test_beta_without_effect_goes() -> None:
    check_pass(
        FoldGemmScalars(),
        """g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}, float[2] b = {1, -1}> {
        t = Gemm <beta = 0.0> (x, w, b) y = Gemm <beta = 3.0> (t, w) }""",
        "g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}> { t = Gemm(x, w) y = Gemm(t, w) }",
    )


def test_computed_operands_are_left_alone() -> None:
    check_pass(
        FoldGemmScalars(),
        "g (float[2,2] x, float[2,2] w, float[2] b) => (float[2,2] y) { y = Gemm <alpha = 0.5, beta = 2.0> (x, w, b) }",
        None,
    )


def test_default_values_are_left_alone() -> None:
    check_pass(
        FoldGemmScalars(),
        "g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}> { y = Gemm <alpha = 1.0, beta = 1.0> (x, w) }",
        None,
    )


def test_a_bias_has_one_axis() -> None:
    check_pass(
        FoldGemmScalars(),
        """g (float[N,2] x) => (float[N,3] y, float[N,3] z)
        <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[1,3] b = {1, 2, 3}, float s = {5}, float[3,3] v = {1, 2, 3, 4, 5, 6, 7, 8, 9}> {
        y = Gemm(x, w, b) z = Gemm <transB = 1> (y, v, s) }""",
        """g (float[N,2] x) => (float[N,3] y, float[N,3] z)
        <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] b = {1, 2, 3}, float[3] s = {5, 5, 5}, float[3,3] v = {1, 2, 3, 4, 5, 6, 7, 8, 9}> {
        y = Gemm(x, w, b) z = Gemm <transB = 1> (y, v, s) }""",
    )


def test_a_constant_of_rows_is_no_bias() -> None:
    check_pass(
        FoldGemmScalars(),
        """g (float[2,2] x) => (float[2,3] y) <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[2,1] c = {1, 2}> {
        y = Gemm(x, w, c) }""",
        None,
    )
