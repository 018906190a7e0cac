"""fold-affine: arithmetic with a constant per channel goes into the layer in front of it."""

from __future__ import annotations

import pytest

from onnxqat.backends import schema
from onnxqat.graph import io
from onnxqat.passes._base import run_passes
from onnxqat.passes._setting import Setting
from onnxqat.passes.fold_affine import FoldAffine
from onnxqat.placement.table_overrides import Overrides, select
from tests.passes.checks import check_pass, parse

CONV = "float[2,1,1,1] w = {1, -2}"
MAP = "g (float[N,1,2,2] x) => (float[N,2,2,2] y)"
ROWS = "g (float[N,3,2] x) => (float[N,3,2] y)"
MATRIX = "float[2,2] w = {1, 2, 3, 4}"


def test_scale_and_offset_behind_a_convolution() -> None:
    check_pass(
        FoldAffine(),
        f"""{MAP} <{CONV}, float[1,2,1,1] f = {{2, 3}}, float[2,1,1] o = {{5, 7}}> {{
        c = Conv(x, w) m = Mul(c, f) y = Sub(m, o) }}""",
        f"""{MAP} <float[2,1,1,1] w = {{2, -6}}, float[2] m_bias = {{-5, -7}}> {{ y = Conv(x, w, m_bias) }}""",
        atol=1e-5,
        inside_function="skip",
    )


@pytest.mark.parametrize(
    ("text", "weight", "bias"),
    [
        ("k = {2, 4} y = Div(c, k)", "{0.5, -0.5}", "{0.5, 0.25}"),
        ("k = {2, 4} y = Sub(k, c)", "{-1, 2}", "{1, 3}"),
        ("k = {2, 4} y = Add(k, c)", "{1, -2}", "{3, 5}"),
    ],
    ids=["divided", "subtracted-from", "added"],
)
def test_operators(text: str, weight: str, bias: str) -> None:
    constant, node = text.split(" y = ")
    check_pass(
        FoldAffine(),
        f"{MAP} <{CONV}, float[2] b = {{1, 1}}, float[2,1,1] {constant}> {{ c = Conv(x, w, b) y = {node} }}",
        f"{MAP} <float[2,1,1,1] w = {weight}, float[2] b = {bias}> {{ y = Conv(x, w, b) }}",
        atol=1e-5,
        inside_function="skip",
    )


def test_one_factor_for_all_channels() -> None:
    check_pass(
        FoldAffine(),
        f"{MAP} <{CONV}, float f = {{0.5}}> {{ c = Conv(x, w) y = Mul(f, c) }}",
        f"{MAP} <float[2,1,1,1] w = {{0.5, -1}}> {{ y = Conv(x, w) }}",
        atol=1e-5,
        inside_function="skip",
    )


def test_one_factor_and_one_offset_of_a_learnable_affine_block() -> None:
    check_pass(
        FoldAffine(),
        f"{MAP} <{CONV}, float[1] f = {{0.5}}, float[1] o = {{3}}> {{ c = Conv(x, w) m = Mul(f, c) a = Add(m, o) y = HardSwish(a) }}",
        f"{MAP} <float[2,1,1,1] w = {{0.5, -1}}, float[2] m_bias = {{3, 3}}> {{ a = Conv(x, w, m_bias) y = HardSwish(a) }}",
        atol=1e-5,
        inside_function="skip",
    )


def test_grouped_transposed_convolution() -> None:
    check_pass(
        FoldAffine(),
        """g (float[N,2,2,2] x) => (float[N,4,2,2] y)
        <float[2,2,1,1] w = {1, 2, 3, 4}, float[1,4,1,1] f = {1, 10, 100, 1000}> {
        c = ConvTranspose <group = 2> (x, w) y = Mul(c, f) }""",
        """g (float[N,2,2,2] x) => (float[N,4,2,2] y) <float[2,2,1,1] w = {1, 20, 300, 4000}> {
        y = ConvTranspose <group = 2> (x, w) }""",
        atol=1e-2,
        inside_function="skip",
    )


def test_layer_scale_behind_a_linear_layer_of_any_rank() -> None:
    check_pass(
        FoldAffine(),
        f"{ROWS} <{MATRIX}, float[2] b = {{1, 2}}, float[2] f = {{2, 3}}> {{ p = MatMul(x, w) a = Add(b, p) y = Mul(a, f) }}",
        f"{ROWS} <float[2,2] w = {{2, 6, 6, 12}}, float[2] b = {{2, 6}}> {{ p = MatMul(x, w) y = Add(b, p) }}",
        atol=1e-5,
        inside_function="skip",
    )


def test_factor_behind_a_product_adds_no_bias() -> None:
    check_pass(
        FoldAffine(),
        f"{ROWS} <{MATRIX}, float[1,2] f = {{2, 3}}> {{ p = MatMul(x, w) y = Mul(p, f) }}",
        f"{ROWS} <float[2,2] w = {{2, 6, 6, 12}}> {{ y = MatMul(x, w) }}",
        atol=1e-5,
        inside_function="skip",
    )


def test_offset_leaves_a_shared_weight_alone() -> None:
    check_pass(
        FoldAffine(),
        f"""g (float[N,1,2,2] x) => (float[N,2,2,2] y, float[N,2,2,2] z) <{CONV}, float[2,1,1] o = {{5, 7}}> {{
        z = Conv(x, w) c = Conv(x, w) y = Add(c, o) }}""",
        f"""g (float[N,1,2,2] x) => (float[N,2,2,2] y, float[N,2,2,2] z) <{CONV}, float[2] c_bias = {{5, 7}}> {{
        z = Conv(x, w) y = Conv(x, w, c_bias) }}""",
        atol=1e-5,
        inside_function="skip",
    )


LEFT = {
    "constant per place": f"{MAP} <{CONV}, float[1,1,2,2] f = {{1, 2, 3, 4}}> {{ c = Conv(x, w) y = Mul(c, f) }}",
    "constant of more axes": f"g (float[N,1,2,2] x) => (float[1,N,2,2,2] y) <{CONV}, float[1,1,2,1,1] f = {{1, 2}}> "
    "{ c = Conv(x, w) y = Mul(c, f) }",
    "divided by the layer": f"{MAP} <{CONV}, float[2,1,1] k = {{1, 2}}> {{ c = Conv(x, w) y = Div(k, c) }}",
    "divided by zero": f"{MAP} <{CONV}, float[2,1,1] k = {{1, 0}}> {{ c = Conv(x, w) y = Div(c, k) }}",
    "bias of a product": f"{ROWS} <{MATRIX}, float[2] b = {{1, 2}}> {{ p = MatMul(x, w) y = Add(p, b) }}",
    "read elsewhere": f"""g (float[N,1,2,2] x) => (float[N,2,2,2] y, float[N,2,2,2] z)
        <{CONV}, float[2,1,1] f = {{1, 2}}> {{ c = Conv(x, w) y = Mul(c, f) z = Relu(c) }}""",
    "graph output": f"""g (float[N,1,2,2] x) => (float[N,2,2,2] y, float[N,2,2,2] c)
        <{CONV}, float[2,1,1] f = {{1, 2}}> {{ c = Conv(x, w) y = Mul(c, f) }}""",
    "shared weight": f"""g (float[N,1,2,2] x) => (float[N,2,2,2] y, float[N,2,2,2] z)
        <{CONV}, float[2,1,1] f = {{1, 2}}> {{ c = Conv(x, w) y = Mul(c, f) z = Conv(x, w) }}""",
    "computed weight": """g (float[N,1,2,2] x, float[2,1,1,1] w) => (float[N,2,2,2] y)
        <float[2,1,1] f = {1, 2}> { c = Conv(x, w) y = Mul(c, f) }""",
    "no layer": f"{MAP.replace('N,1', 'N,2')} <float[2,1,1] f = {{1, 2}}> {{ c = Relu(x) y = Mul(c, f) }}",
    "overflow": f"{MAP} <{CONV.replace('-2', '3e38')}, float[2,1,1] f = {{1, 2}}> {{ c = Conv(x, w) y = Mul(c, f) }}",
}


@pytest.mark.parametrize("text", LEFT.values(), ids=LEFT)
def test_left_alone(text: str) -> None:
    check_pass(FoldAffine(), text, None, inside_function="skip", inside_if="skip")


def test_a_written_out_activation_stays_one() -> None:
    """x * 0.5 * (1 + erf(x / sqrt 2)): the factor behind the product is part of the GELU."""
    text = """g (float[N,3,2] x) => (float[N,3,2] y) <float[2,2] w = {1, 2, 3, 4}, float r = {1.4142135},
        float one = {1}, float half = {0.5}> { p = MatMul(x, w) d = Div(p, r) e = Erf(d) a = Add(e, one)
        m = Mul(p, a) y = Mul(m, half) }"""
    check_pass(FoldAffine(), text, None, inside_function="skip", inside_if="skip")


def test_excluded_node_stays() -> None:
    model = parse(f"{MAP} <{CONV}, float[2,1,1] f = {{1, 2}}> {{ c = Conv(x, w) [scale] y = Mul(c, f) }}")
    selection = select(io.load(model), Overrides(exclude=("scale",)))
    result = run_passes(model, [FoldAffine(Setting(schema.load("onnxruntime-cpu"), selection=selection))])
    assert not result.changed
