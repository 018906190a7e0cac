"""gather-codes: rows of a quantized table are dequantized once they are picked."""

import pytest

from onnxqat.passes.gather_codes import GatherCodes
from tests.passes.checks import check_pass, parse, run_checked

CONSTANTS = "int8[3,2] w = {1, -2, 3, 4, 5, 127}, float[3] s = {0.1, 0.2, 0.3}, int8[3] z = {0, 0, 0}"
HEAD = '<ir_version: 8, opset_import: ["" : 17]> '


def test_codes_and_scales_of_the_rows() -> None:
    check_pass(
        GatherCodes(),
        f"g (int64[N] i) => (float[N,2] y) <{CONSTANTS}> {{ d = DequantizeLinear <axis = 0> (w, s, z) y = Gather(d, i) }}",
        """g (int64[N] i) => (float[N,2] y) <int8[3,2] w = {1, -2, 3, 4, 5, 127}, float[3,1] w_row_scale = {0.1, 0.2, 0.3}> {
        y_codes = Gather(w, i) y_numbers = Cast <to = 1> (y_codes) y_scales = Gather(w_row_scale, i)
        y = Mul(y_numbers, y_scales) }""",
        inside_if="skip",
        inside_function="skip",
    )


def test_a_layer_keeps_the_dequantized_table() -> None:
    text = f"""{HEAD}g (int64[N] i, float[N,2] x) => (float[N,2] y, float[N,3] h) <{CONSTANTS}> {{
        d = DequantizeLinear <axis = 0> (w, s, z) y = Gather(d, i) h = Gemm <transB = 1> (x, d) }}"""
    result = run_checked(GatherCodes(), parse(text), 0.0)
    assert sorted(n.op_type for n in result.model.graph.node) == [
        "Cast",
        "DequantizeLinear",
        "Gather",
        "Gather",
        "Gemm",
        "Mul",
    ]
    assert [i.name for i in result.model.graph.initializer if i.name == "w"] == ["w"]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("<axis = 0> (w, s, z)", "<axis = 1> (w, c, k)", "each row"),
        ("int8[3] z = {0, 0, 0}", "int8[3] z = {0, 1, 0}", "zero points"),
        ("Gather(d, i)", "Gather <axis = 1> (d, i)", "another axis"),
    ],
)
def test_other_tables_are_left_with_the_reason(old: str, new: str, why: str) -> None:
    more = "float[2] c = {0.1, 0.2}, int8[2] k = {0, 0}"
    text = f"{HEAD}g (int64[N] i) => (float[A,B] y) <{CONSTANTS}, {more}> {{ d = DequantizeLinear <axis = 0> (w, s, z) y = Gather(d, i) }}"
    result = GatherCodes().run(parse(text.replace(old, new)))
    assert not result.changed
    assert why in result.remarks[0].message
