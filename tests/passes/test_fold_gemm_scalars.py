"""fold-gemm-scalars: no Gemm has alpha or beta."""

import pytest

from onnxqat.passes.fold_gemm_scalars import FoldGemmScalars
from tests.passes.checks import check_pass, parse, run_checked


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


@pytest.mark.parametrize("scalar", ["alpha", "beta", "transB"])
def test_what_the_caller_of_a_function_decides_stays(scalar: str) -> None:
    kind, value = ("int", "1") if scalar == "transB" else ("float", "0.5")
    text = f"""<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[2,2] x) => (float[2,2] y) {{ y = local.f <{scalar} = {value}> (x) }}
        <domain: "local", opset_import: ["" : 17]> f <{scalar}> (x) => (y) {{
        w = Constant <value = float[2,2] {{1, 2, 3, 4}}> () c = Constant <value = float[1,2] {{1, 2}}> ()
        y = Gemm <{scalar} : {kind} = @{scalar}> (x, w, c) }}"""
    result = run_checked(FoldGemmScalars(), parse(text), 1e-6)
    (node,) = (each for each in result.model.functions[0].node if each.op_type == "Gemm")
    assert [each.ref_attr_name for each in node.attribute] == [scalar]
    assert result.changed == (scalar != "transB")  # C becomes a bias; with transB it is not known which axis is N


def test_a_weight_of_unknown_shape_says_nothing_about_the_bias() -> None:
    check_pass(
        FoldGemmScalars(),
        """g (float[2,2] x, float[2,N] w) => (float[2,N] y) <float[1,2] c = {1, 2}> { y = Gemm(x, w, c) }""",
        None,
    )
    check_pass(
        FoldGemmScalars(),
        """g (float[2,2] x, int64[2] n) => (float[2,N] y) <float[2,2] v = {1, 2, 3, 4}, int64[2] two = {2, 2}, float[1,2] c = {1, 2}> {
        i = Abs(two) w = Reshape(v, i) y = Gemm(x, w, c) }""",
        None,
    )


def test_one_value_beside_unknown_columns_stays() -> None:
    text = "g (float[2,2] x, float[2,N] w) => (float[2,N] y) <float[1,1] c = {1}> { y = Gemm <transB = 0> (x, w, c) }"
    check_pass(FoldGemmScalars(), text, None)


def test_an_attribute_may_say_what_is_so_by_default() -> None:
    check_pass(
        FoldGemmScalars(),
        """g (float[2,2] x) => (float[2,3] y) <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[1,3] c = {1, 2, 3}> {
        y = Gemm <transB = 0> (x, w, c) }""",
        """g (float[2,2] x) => (float[2,3] y) <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] c = {1, 2, 3}> {
        y = Gemm <transB = 0> (x, w, c) }""",
    )


def test_the_columns_of_a_computed_weight() -> None:
    check_pass(
        FoldGemmScalars(),
        "g (float[2,2] x, float[3,2] w) => (float[2,3] y) <float[1,3] c = {1, 2, 3}> { y = Gemm <transB = 1> (x, w, c) }",
        "g (float[2,2] x, float[3,2] w) => (float[2,3] y) <float[3] c = {1, 2, 3}> { y = Gemm <transB = 1> (x, w, c) }",
        inside_if="skip",
        inside_function="left",
    )


def test_a_function_of_the_same_name_is_another() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[2,2] x) => (float[2,2] y) <float[2,2] w = {1, 2, 3, 4}> { y = local.Gemm <alpha = 0.5> (x, w) }
        <domain: "local", opset_import: ["" : 17]> Gemm <alpha> (x, w) => (y) {
        a = Constant <value_float : float = @alpha> () p = MatMul(x, w) y = Sub(p, a) }"""
    assert not run_checked(FoldGemmScalars(), parse(text), 0.0).changed
