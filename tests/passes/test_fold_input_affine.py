"""fold-input-affine: one factor and one offset go into the layers behind them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from onnx import numpy_helper

from onnxqat.backends import schema
from onnxqat.graph import io
from onnxqat.passes._base import Pass, run_passes
from onnxqat.passes._setting import Setting
from onnxqat.passes.eliminate_no_ops import EliminateNoOps
from onnxqat.passes.fold_affine import FoldAffine
from onnxqat.passes.fold_input_affine import FoldInputAffine
from onnxqat.placement.table_overrides import Overrides, select
from tests.passes.checks import check_pass, parse

MAP = "g (float[N,2,3,3] x) => (float[N,1,P,Q] y)"
ROWS = "g (float[N,2] x) => (float[N,1] y)"
R = "float[N,2,3,3] r"  # ranks are known where a file is prepared
CONV = "float[1,2,1,1] w = {1, -4}"
FACTOR, OFFSET = "float[1] f = {0.5}", "float o = {3}"


def test_factor_and_offset_in_front_of_a_convolution() -> None:
    check_pass(
        FoldInputAffine(),
        f"{MAP} <{CONV}, {R}, float[1] b = {{1}}, {FACTOR}, {OFFSET}> {{ r = HardSwish(x) m = Mul(f, r) a = Add(m, o) y = Conv(a, w, b) }}",
        f"{MAP} <float[1,2,1,1] w = {{0.5, -2}}, float[1] b = {{-8}}> {{ r = HardSwish(x) y = Conv(r, w, b) }}",
        atol=1e-5,
        inside_function="skip",
        inside_if="skip",
    )


@pytest.mark.parametrize(
    ("text", "weight", "bias"),
    [
        ("k = {4} a = Div(r, k)", "{0.25, -1}", None),
        ("k = {4} a = Sub(r, k)", "{1, -4}", "{12}"),
        ("k = {4} a = Sub(k, r)", "{-1, 4}", "{-12}"),
    ],
    ids=["divided", "subtracted", "subtracted-from"],
)
def test_operators(text: str, weight: str, bias: str | None) -> None:
    constant, node = text.split(" a = ")
    made, read = (f", float[1] y_bias = {bias}", ", y_bias") if bias else ("", "")
    check_pass(
        FoldInputAffine(),
        f"{MAP} <{CONV}, {R}, float[1,1,1,1] {constant}> {{ r = Relu(x) a = {node} y = Conv(a, w) }}",
        f"{MAP} <float[1,2,1,1] w = {weight}{made}> {{ r = Relu(x) y = Conv(r, w{read}) }}",
        atol=1e-4,
        inside_function="skip",
        inside_if="skip",
    )


def test_activation_that_is_written_out() -> None:
    check_pass(
        FoldInputAffine(),
        f"{MAP} <{CONV}, {OFFSET}> {{ s = HardSigmoid(x) r = Mul(s, x) a = Add(r, o) y = Conv(a, w) }}",
        f"{MAP} <{CONV}, float[1] y_bias = {{-9}}> {{ s = HardSigmoid(x) r = Mul(s, x) y = Conv(r, w, y_bias) }}",
        atol=1e-5,
        inside_function="skip",
        inside_if="skip",
    )


def test_factor_passes_an_offset_that_padding_keeps() -> None:
    """What lies behind that offset are other values than those that the user knows by the name."""
    check_pass(
        FoldInputAffine(),
        f"{MAP} <{CONV}, {FACTOR}, {OFFSET}> {{ m = Mul(x, f) a = Add(o, m) y = Conv <pads = [1, 1, 1, 1]> (a, w) }}",
        f"""{MAP} <float[1,2,1,1] w = {{0.5, -2}}, float o = {{6}}> {{
        a_divided = Add(o, x) y = Conv <pads = [1, 1, 1, 1]> (a_divided, w) }}""",
        atol=1e-5,
        inside_function="skip",
    )


def test_every_layer_that_reads_it() -> None:
    check_pass(
        FoldInputAffine(),
        f"""g (float[N,2] x) => (float[N,1] y, float[N,1] z) <float[2,1] w = {{1, 2}}, float[1,2] v = {{3, 4}}, {OFFSET}> {{
        r = Relu(x) a = Add(r, o) y = Gemm(a, w) z = Gemm <transB = 1> (a, v) }}""",
        """g (float[N,2] x) => (float[N,1] y, float[N,1] z) <float[2,1] w = {1, 2}, float[1,2] v = {3, 4},
        float[1] y_bias = {9}, float[1] z_bias = {21}> {
        r = Relu(x) y = Gemm(r, w, y_bias) z = Gemm <transB = 1> (r, v, z_bias) }""",
        atol=1e-5,
        inside_function="skip",
    )


def test_factor_in_front_of_a_product_and_a_transposed_convolution() -> None:
    check_pass(
        FoldInputAffine(),
        f"g (float[N,3,2] x) => (float[N,3,1] y) <float[2,1] w = {{1, 2}}, {FACTOR}> {{ m = Mul(x, f) y = MatMul(m, w) }}",
        "g (float[N,3,2] x) => (float[N,3,1] y) <float[2,1] w = {0.5, 1}> { y = MatMul(x, w) }",
        atol=1e-5,
        inside_function="skip",
    )
    check_pass(
        FoldInputAffine(),
        f"{MAP} <float[2,1,1,1] w = {{1, -4}}, {FACTOR}> {{ m = Mul(x, f) y = ConvTranspose(m, w) }}",
        f"{MAP} <float[2,1,1,1] w = {{0.5, -2}}> {{ y = ConvTranspose(x, w) }}",
        atol=1e-5,
        inside_function="skip",
    )


@pytest.mark.parametrize(
    ("bias", "moved"),
    [
        ("float b = {5}", "float[2] b = {14, 23}"),
        ("float[3,1] b = {1, 2, 3}", "float[3,2] b = {10, 19, 11, 20, 12, 21}"),
        ("float[1,2] b = {1, 2}", "float[1,2] b = {10, 20}"),
    ],
    ids=["one", "column", "row"],
)
def test_bias_of_a_gemm_takes_the_shape_of_the_sum(bias: str, moved: str) -> None:
    check_pass(
        FoldInputAffine(),
        f"g (float[3,2] x) => (float[3,2] y) <float[2,2] w = {{1, 2, 2, 4}}, {bias}, {OFFSET}> {{ r = Sigmoid(x) a = Add(r, o) y = Gemm(a, w, b) }}",
        f"g (float[3,2] x) => (float[3,2] y) <float[2,2] w = {{1, 2, 2, 4}}, {moved}> {{ r = Sigmoid(x) y = Gemm(r, w, b) }}",
        atol=1e-5,
        inside_function="skip",
        inside_if="skip",
    )


def test_groups_strides_and_shared_biases() -> None:
    check_pass(
        FoldInputAffine(),
        f"""g (float[N,2,5,5] x) => (float[N,2,P,Q] y, float[N,2,P,Q] z) <float[2,1,2,1] w = {{1, 2, 3, 4}}, float[2,2,1,1] v =
        {{1, 2, 3, 4}}, float[2] b = {{1, 1}}, {OFFSET}> {{ r = Relu(x) a = Add(r, o)
        y = Conv <group = 2, strides = [2, 1], dilations = [2, 1], auto_pad = "VALID"> (a, w, b) z = Conv(x, v, b) }}""",
        """g (float[N,2,5,5] x) => (float[N,2,P,Q] y, float[N,2,P,Q] z) <float[2,1,2,1] w = {1, 2, 3, 4}, float[2,2,1,1] v =
        {1, 2, 3, 4}, float[2] b = {1, 1}, float[2] b_folded = {10, 22}> { r = Relu(x)
        y = Conv <group = 2, strides = [2, 1], dilations = [2, 1], auto_pad = "VALID"> (r, w, b_folded) z = Conv(x, v, b) }""",
        atol=1e-4,
        inside_function="skip",
        inside_if="skip",
    )


def test_grouped_transposed_convolution() -> None:
    check_pass(
        FoldInputAffine(),
        f"g (float[N,2,3,3] x) => (float[N,4,P,Q] y) <float[2,2,1,1] w = {{1, 2, 3, 4}}, {FACTOR}> "
        "{ m = Mul(x, f) y = ConvTranspose <group = 2> (m, w) }",
        "g (float[N,2,3,3] x) => (float[N,4,P,Q] y) <float[2,2,1,1] w = {0.5, 1, 1.5, 2}> { y = ConvTranspose <group = 2> (x, w) }",
        atol=1e-5,
        inside_function="skip",
    )


# The bits of 0.5, 1 and 2: what ONNX's text has for float16.
@pytest.mark.parametrize(("kind", "half", "one", "two"), [("float16", 14336, 15360, 16384), ("double", 0.5, 1, 2)])
def test_other_types(kind: str, half: float, one: float, two: float) -> None:
    check_pass(
        FoldInputAffine(),
        f"g ({kind}[N,2] x) => ({kind}[N,1] y) <{kind}[2,1] w = {{{one}, {two}}}, {kind} f = {{{half}}}> {{ m = Mul(x, f) y = MatMul(m, w) }}",
        f"g ({kind}[N,2] x) => ({kind}[N,1] y) <{kind}[2,1] w = {{{half}, {one}}}> {{ y = MatMul(x, w) }}",
        inside_function="skip",
    )


def test_inside_a_branch_and_of_the_outer_graph() -> None:
    branch = "<then_branch = t () => (float[N,1] p) {{ {0} }}, else_branch = e () => (float[N,1] q) {{ {1} }}>"
    text = "g (float[N,2] x, bool c) => (float[N,1] y) <float[2,1] w = {{1, 2}}, float[2,1] v = {{3, 4}}{2}> {{ r = Relu(x){3} y = If (c) "
    constants = ", float f = {0.5}, float k = {4}"
    check_pass(
        FoldInputAffine(),
        (text + branch + " }}").format(
            "a = Mul(r, f) p = MatMul(a, w)", "q = MatMul(m, v)", constants, " m = Div(r, k)"
        ),
        (text + branch + " }}")
        .format("p = MatMul(r, w)", "q = MatMul(m, v)", ", float k = {4}", " m = Div(r, k)")
        .replace("w = {1, 2}", "w = {0.5, 1}"),
        atol=1e-5,
        inside_function="skip",
        inside_if="skip",
    )


LEFT = {
    "offset and padding": f'{MAP} <{CONV}, {OFFSET}> {{ r = Relu(x) a = Add(r, o) y = Conv <auto_pad = "SAME_UPPER"> (a, w) }}',
    "offset and pads": f"{MAP} <{CONV}, {OFFSET}> {{ r = Relu(x) a = Add(r, o) y = Conv <pads = [0, 1, 0, 0]> (a, w) }}",
    "offset of what may lie far from zero": f"{MAP} <{CONV}, {OFFSET}> {{ a = Add(x, o) y = Conv(a, w) }}",
    "offset of a product with another tensor": f"{MAP} <{CONV}, {OFFSET}> {{ s = Sigmoid(x) e = Exp(x) r = Mul(e, s) a = Add(r, o) y = Conv(a, w) }}",
    "offset of what is cut off elsewhere": f"{MAP} <{CONV}, {OFFSET}, float l = {{7}}> {{ r = Clip(x, l) a = Sub(r, o) y = Conv(a, w) }}",
    "offset of a product": f"{ROWS} <float[2,1] w = {{1, 2}}, {OFFSET}> {{ r = Relu(x) a = Add(r, o) y = MatMul(a, w) }}",
    "offset of a transposed convolution": f"{MAP} <float[2,1,1,1] w = {{1, 2}}, {OFFSET}> "
    "{ r = Relu(x) a = Add(r, o) y = ConvTranspose(a, w) }",
    "offset of a Gemm with a bias that is computed": f"g (float[N,2] x, float[1] b) => (float[N,1] y) <float[2,1] w = {{1, 2}}, {OFFSET}> "
    "{ r = Relu(x) a = Add(r, o) y = Gemm(a, w, b) }",
    "factor per channel": f"{MAP} <{CONV}, float[2,1,1] f = {{1, 2}}> {{ m = Mul(x, f) y = Conv(m, w) }}",
    "factor of zero": f"{MAP} <{CONV}, float f = {{0}}> {{ m = Mul(x, f) y = Conv(m, w) }}",
    "constant divided": f"{MAP} <{CONV}, {OFFSET}> {{ r = Exp(x) m = Div(o, r) y = Conv(m, w) }}",
    "division by zero": f"{MAP} <{CONV}, float f = {{0}}> {{ r = Exp(x) m = Div(r, f) y = Conv(m, w) }}",
    "more axes": "g (float[2] x) => (float[1,1] y) <float[2,1] w = {1, 2}, float[1,1] f = {2}> "
    "{ m = Mul(x, f) y = MatMul(m, w) }",
    "more axes in front of a Gemm": "g (float[2] x) => (float[1,1] y) <float[2,1] w = {1, 2}, float[1,1] f = {2}> "
    "{ m = Mul(x, f) y = Gemm(m, w) }",
    "more axes in front of a convolution": f"g (float[2,3,3] x) => (float[1,1,P,Q] y) <{CONV}, float[1,1,1,1] f = {{2}}> "
    "{ m = Mul(x, f) y = Conv(m, w) }",
    "graph output": f"g (float[N,2,3,3] x) => (float[N,1,P,Q] y, float[N,2,3,3] m) <{CONV}, {FACTOR}> "
    "{ m = Mul(x, f) y = Conv(m, w) }",
    "read elsewhere": f"g (float[N,2,3,3] x) => (float[N,1,P,Q] y, float[N,2,3,3] z) <{CONV}, {FACTOR}> "
    "{ m = Mul(x, f) y = Conv(m, w) z = Relu(m) }",
    "no weight": f"g (float[N,2,2] x, float[N,2,2] v) => (float[N,2,2] y) <{FACTOR}> {{ m = Mul(x, f) y = MatMul(v, m) }}",
    "weight that is computed": f"g (float[N,2] x, float[2,1] w) => (float[N,1] y) <{FACTOR}> {{ m = Mul(x, f) y = MatMul(m, w) }}",
    "weight that the caller may override": f"g (float[N,2] x, float[2,1] w) => (float[N,1] y) <float[2,1] w = {{1, 2}}, {FACTOR}> "
    "{ m = Mul(x, f) y = MatMul(m, w) }",
    "shared weight": f"g (float[N,2,3,3] x) => (float[N,1,P,Q] y, float[N,1,P,Q] z) <{CONV}, {FACTOR}> "
    "{ m = Mul(x, f) y = Conv(m, w) z = Conv(x, w) }",
    "overflow": f"{MAP} <{CONV}, float f = {{3e38}}> {{ m = Mul(x, f) y = Conv(m, w) }}",
    "underflow": f"{MAP} <{CONV}, float f = {{1e-38}}> {{ m = Mul(x, f) y = Conv(m, w) }}",
    "underflow of a float16": "g (float16[N,2] x) => (float16[N,1] y) <float16[2,1] w = {15360, 8479}, float16 f = {7193}> "
    "{ m = Mul(x, f) y = MatMul(m, w) }",
    "overflow of an offset that is passed": f"{MAP} <{CONV}, float f = {{1e-20}}, float o = {{1e20}}> "
    "{ m = Mul(x, f) a = Add(m, o) y = Conv <pads = [1, 1, 1, 1]> (a, w) }",
    "of a Gemm with alpha": f"{ROWS} <float[2,1] w = {{1, 2}}, {FACTOR}> {{ m = Mul(x, f) y = Gemm <alpha = 2.0> (m, w) }}",
    "of a transposed Gemm": f"g (float[2,N] x) => (float[N,1] y) <float[2,1] w = {{1, 2}}, {FACTOR}> "
    "{ m = Mul(x, f) y = Gemm <transA = 1> (m, w) }",
    "integers": "g (int32[N,2] x) => (int32[N,1] y) <int32[2,1] w = {1, 2}, int32 f = {3}> { m = Mul(x, f) y = MatMul(m, w) }",
}


@pytest.mark.parametrize("text", LEFT.values(), ids=LEFT)
def test_left_alone(text: str) -> None:
    check_pass(FoldInputAffine(), text, None, inside_function="skip", inside_if="skip")


def test_excluded_node_stays() -> None:
    model = parse(f"{MAP} <{CONV}, {FACTOR}> {{ [scale] m = Mul(x, f) y = Conv(m, w) }}")
    selection = select(io.load(model), Overrides(exclude=("scale",)))
    result = run_passes(model, [FoldInputAffine(Setting(schema.load("onnxruntime-cpu"), selection=selection))])
    assert not result.changed


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("constant", ["f", "w"])
def test_constants_that_are_not_finite(constant: str, value: float) -> None:
    model = parse(f"{MAP} <{CONV}, {FACTOR}> {{ m = Mul(x, f) y = Conv(m, w) }}")
    found = next(i for i in model.graph.initializer if i.name == constant)
    array = np.array(numpy_helper.to_array(found))
    array.reshape(-1)[0] = value
    found.CopyFrom(numpy_helper.from_array(array, constant))
    assert not run_passes(model, [FoldInputAffine()]).changed


@pytest.mark.parametrize("pass_", [FoldInputAffine(), FoldAffine()], ids=["behind", "in front"])
def test_attributes_that_a_call_gives_are_unknown(pass_: Pass) -> None:
    model = parse("""<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    g (float[N,2] x) => (float[N,2] y) { y = local.layer <turned = 1> (x) }
    <domain: "local", opset_import: ["" : 17]> layer <turned> (x) => (y) {
        w = Constant <value = float[2,2] {1, 2, 3, 4}> () f = Constant <value = float {2}> ()
        r = Relu(x) a = Add(r, f) l = Gemm <transB: int = @turned> (a, w) y = Mul(l, f) }""")
    assert not run_passes(model, [pass_]).changed


@pytest.mark.parametrize("pass_", [EliminateNoOps, FoldAffine, FoldInputAffine])
def test_encodings_are_for_the_tensors_of_the_float_file(pass_: type[Pass]) -> None:
    table = schema.load("onnxruntime-cpu")
    assert pass_.for_backend(Setting(table)) is not None
    assert pass_.for_backend(Setting(table, Overrides(encodings=("a.encodings",)))) is None
