"""matmul-bias-to-gemm: a product and the bias behind it are one Gemm."""

import onnx_ir as ir
import pytest

from onnxqat.passes.matmul_bias_to_gemm import MatmulBiasToGemm
from tests.passes.checks import check_pass

# Nothing states the axes of a function's inputs, which takes their Shape; insert-qdq inlines functions first.

LAYER = "float[3,2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {1, -1}"


def rows_and_sizes(source: str) -> tuple[str, str]:
    """Constants, and the nodes that make y of the rows of `source`, whose sizes are known when it is."""
    constants = f"""int64[2] {source}_rows_shape = {{-1, 3}}, int64[1] y_begin = {{0}}, int64[1] y_end = {{-1}},
    int64[1] y_width = {{2}}"""
    nodes = f"""{source}_rows = Reshape({source}, {source}_rows_shape) y_rows = Gemm({source}_rows, w, b)
    y_sizes = Shape({source}) y_outer = Slice(y_sizes, y_begin, y_end) y_shape = Concat <axis = 0> (y_outer, y_width)
    y = Reshape(y_rows, y_shape)"""
    return constants, nodes


def test_two_axes_need_no_reshape() -> None:
    before = "g (float[N,3] x) => (float[N,2] y)"
    check_pass(
        MatmulBiasToGemm(),
        f"{before} <{LAYER}> {{ h = MatMul(x, w) y = Add(b, h) }}",
        f"{before} <{LAYER}> {{ y = Gemm(x, w, b) }}",
        inside_function="skip",
    )


def test_a_row_of_more_axes_becomes_one_value_a_column() -> None:
    before = "g (float[N,3] x) => (float[N,2] y) <float[3,2] w = {1, 2, 3, 4, 5, 6}, float[1,2] b = {1, -1}>"
    after = "g (float[N,3] x) => (float[N,2] y) <float[3,2] w = {1, 2, 3, 4, 5, 6}, float[2] b_flat = {1, -1}>"
    check_pass(
        MatmulBiasToGemm(),
        f"{before} {{ h = MatMul(x, w) y = Add(h, b) }}",
        f"{after} {{ y = Gemm(x, w, b_flat) }}",
        inside_function="skip",
    )


def test_layers_of_one_input_share_its_rows() -> None:
    before = "g (float[N,5,3] x) => (float[N,5,2] y, float[N,5,2] z)"
    shapes = "int64[2] x_rows_shape = {-1, 3}, int64[3] y_shape = {-1, 5, 2}, int64[3] z_shape = {-1, 5, 2}"
    check_pass(
        MatmulBiasToGemm(),
        f"{before} <{LAYER}> {{ h = MatMul(x, w) y = Add(h, b) i = MatMul(x, w) z = Add(i, b) }}",
        f"""{before} <{LAYER}, {shapes}> {{ x_rows = Reshape(x, x_rows_shape)
        y_rows = Gemm(x_rows, w, b) y = Reshape(y_rows, y_shape)
        z_rows = Gemm(x_rows, w, b) z = Reshape(z_rows, z_shape) }}""",
        inside_function="skip",
    )


def test_a_limit_stays_behind_its_gemm() -> None:
    before = "g (float[1,5,3] x) => (float[1,5,2] y)"
    shapes = "int64[2] x_rows_shape = {-1, 3}, int64[3] y_shape = {1, 5, 2}"
    check_pass(
        MatmulBiasToGemm(),
        f"{before} <{LAYER}> {{ h = MatMul(x, w) s = Add(h, b) y = Relu(s) }}",
        f"""{before} <{LAYER}, {shapes}> {{ x_rows = Reshape(x, x_rows_shape)
        s_rows = Gemm(x_rows, w, b) y_rows = Relu(s_rows) y = Reshape(y_rows, y_shape) }}""",
        inside_function="skip",
    )


def test_unknown_sizes_come_from_the_input() -> None:
    before = "g (float[N,T,3] x) => (float[N,T,2] y)"
    integers, nodes = rows_and_sizes("x")
    check_pass(
        MatmulBiasToGemm(),
        f"{before} <{LAYER}> {{ h = MatMul(x, w) y = Add(h, b) }}",
        f"{before} <{LAYER}, {integers}> {{ {nodes} }}",
        inside_function="skip",
    )


def test_an_unknown_rank_is_that_of_the_input() -> None:
    before = "g (float[N,T,3] x) => (float[A,B,C] y)"
    integers, nodes = rows_and_sizes("r")
    check_pass(
        MatmulBiasToGemm(),
        f"{before} <{LAYER}> {{ r = Neg(x) h = MatMul(r, w) y = Add(h, b) }}",
        f"{before} <{LAYER}, {integers}> {{ r = Neg(x) {nodes} }}",
        inside_if="skip",
        inside_function="skip",
    )


@pytest.mark.parametrize(
    "nodes",
    [
        "h = MatMul(x, w) s = Add(h, h) y = Add(s, b)",  # others read the product
        "h = MatMul(x, w) y = Add(h, x)",  # no constant
        "h = MatMul(x, w) y = Add(h, column)",  # one value a row of the input
        "h = MatMul(x, w) y = Sub(h, b)",
    ],
)
def test_other_sums_are_left_alone(nodes: str) -> None:
    constants = "float[2,2] w = {1, 2, 3, 4}, float[2] b = {1, -1}, float[2,1] column = {1, 2}"
    check_pass(MatmulBiasToGemm(), f"g (float[2,2] x) => (float[2,2] y) <{constants}> {{ {nodes} }}", None)


def test_a_layer_that_is_left_out_stays_as_it_is() -> None:
    def chosen(node: ir.Node) -> str | None:
        return "excluded" if node.op_type == "Add" else None

    before = f"g (float[N,3] x) => (float[N,2] y) <{LAYER}> {{ h = MatMul(x, w) y = Add(h, b) }}"
    check_pass(MatmulBiasToGemm(chosen), before, None)
