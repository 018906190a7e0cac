"""Outputs behind random numbers are named."""

import onnx_ir as ir

from onnxqat.analysis import random_draws
from tests.passes.checks import parse


def named(body: str) -> str:
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y, float[N] z) {{ {body} }}'
    return " ".join(remark.message for remark in random_draws.remarks(ir.from_proto(parse(text))))


def test_only_what_is_behind_a_draw_differs() -> None:
    message = named("n = RandomNormalLike (x) y = Add (x, n) z = Relu (x)")
    assert message.startswith("'y' differ from run to run, since RandomNormalLike->n")
    assert named("n = RandomNormalLike (x) y = Neg (x) z = Relu (x)") == ""


def test_a_draw_in_a_branch() -> None:
    branches = "then_branch = a () => (float[N] p) { p = RandomUniformLike (x) }"
    branches += ", else_branch = b () => (float[N] q) { q = Relu (x) }"
    message = named(f"c = Constant <value = bool {{1}}> () y = If <{branches}> (c) z = Abs (y)")
    assert message.startswith("'y', 'z' differ")


def test_dropout_draws_only_where_it_trains() -> None:
    body = "r = Constant <value_float = 0.5> () t = Constant <value = bool {%d}> () y = Dropout (x, r, t) z = Abs (x)"
    assert named(body % 1).startswith("'y' differ")
    assert named(body % 0) == ""
