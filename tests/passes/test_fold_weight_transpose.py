"""fold-weight-transpose: compilers find the weight right behind its DequantizeLinear."""

from onnxqat.passes.fold_weight_transpose import FoldWeightTranspose
from tests.passes.checks import check_pass

GRID = "float[2] s = {0.5, 0.25}, int8[2] z = {0, 0}"


def test_stored_integers_are_transposed_and_their_axis_moves() -> None:
    check_pass(
        FoldWeightTranspose(),
        f"""g (float[N,3] x) => (float[N,2] y) <{GRID}, int8[2,3] w = {{1, 2, 3, 4, 5, 6}}> {{
        d = DequantizeLinear <axis = 0> (w, s, z) t = Transpose <perm = [1,0]> (d) y = MatMul(x, t) }}""",
        f"""g (float[N,3] x) => (float[N,2] y) <{GRID}, int8[3,2] w_transposed = {{1, 4, 2, 5, 3, 6}}> {{
        d = DequantizeLinear <axis = 1> (w_transposed, s, z) y = MatMul(x, d) }}""",
    )


def test_a_float_weight_and_its_pair() -> None:
    check_pass(
        FoldWeightTranspose(),
        f"""g (float[N,3] x) => (float[N,2] y) <{GRID}, float[2,3] w = {{1, 2, 3, 4, 5, 6}}> {{
        q = QuantizeLinear <axis = 0> (w, s, z) d = DequantizeLinear <axis = 0> (q, s, z)
        t = Transpose(d) y = MatMul(x, t) }}""",
        f"""g (float[N,3] x) => (float[N,2] y) <{GRID}, float[3,2] w_transposed = {{1, 4, 2, 5, 3, 6}}> {{
        q = QuantizeLinear <axis = 1> (w_transposed, s, z) d = DequantizeLinear <axis = 1> (q, s, z)
        y = MatMul(x, d) }}""",
    )


def test_a_weight_that_is_read_otherwise_too_is_left_alone() -> None:
    check_pass(
        FoldWeightTranspose(),
        f"""g (float[N,2] x) => (float[N,2] y) <{GRID}, int8[2,2] w = {{1, 2, 3, 4}}> {{
        d = DequantizeLinear <axis = 0> (w, s, z) t = Transpose <perm = [1,0]> (d) h = MatMul(x, t) y = MatMul(h, d) }}""",
        None,
    )


def test_activations_are_left_alone() -> None:
    check_pass(
        FoldWeightTranspose(),
        """g (float[2,3] x) => (float[3,2] y) <float s = {0.5}, int8 z = {0}> {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Transpose <perm = [1,0]> (d) }""",
        None,
    )
