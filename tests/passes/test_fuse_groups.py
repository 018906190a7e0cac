"""fuse-groups: one operator for what an exporter wrote out, with the same numbers."""

import onnx
import pytest

from onnxqat.graph import io, shapes
from onnxqat.passes.fuse_groups import FuseGroups
from tests.analysis.groups import test_activation_functions as functions
from tests.passes.checks import check_pass, compare_outputs, parse

NORM = """<ir_version: 10, opset_import: ["" : 17]> g (float[2,3,4] x) => (float[2,3,4] y) <float two = {{2}}, float eps = {{0.001}},
    float[4] gamma = {{1, 2, 3, 4}}, float[1,4] beta = {{1, 2, 3, 4}}> {{ {} }}"""
LAYER = """m = ReduceMean <axes = [-1]> (x) d = Sub(x, m) q = Pow(d, two) v = ReduceMean <axes = [-1]> (q) a = Add(v, eps)
    s = Sqrt(a) n = Div(d, s) g = Mul(n, gamma) y = Add(g, beta)"""
RMS = "q = Mul(x, x) v = ReduceMean <axes = [-1]> (q) a = Add(v, eps) s = Sqrt(a) n = Div(x, s) y = Mul(n, gamma)"
GROUP = """<ir_version: 10, opset_import: ["" : 21]> g (float[N,4,3,3] x) => (float[N,4,3,3] y) <int64[3] rows = {0, 2, -1},
    int64[4] whole = {-1, 4, 3, 3}, float[2] ones = {1, 1}, float[2] zeros = {0, 0}, float[4,1,1] gamma = {1, 2, 3, 4},
    float[4,1,1] beta = {4, 3, 2, 1}> { r = Reshape(x, rows) i = InstanceNormalization <epsilon = 0.01> (r, ones, zeros)
    b = Reshape(i, whole) g = Mul(b, gamma) y = Add(g, beta) }"""
ATTENTION = """<ir_version: 10, opset_import: ["" : 23]> g (float[1,2,3,4] q, float[1,2,5,4] k, float[1,2,5,4] v, float[3,5] m)
    => (float[1,2,3,4] y) <float s = {0.5}> { t = Transpose <perm = [0, 1, 3, 2]> (k) h = MatMul(q, t) c = Mul(h, s) x = Add(c, m)
    a = Softmax <axis = -1> (x) y = MatMul(a, v) }"""


def fused(text: str, **options: object) -> onnx.ModelProto:
    model = io.load(parse(text))
    shapes.infer(model)
    result = FuseGroups(**options).run(io.to_proto(model))  # type: ignore[arg-type]
    onnx.checker.check_model(result.model, full_check=True)
    assert not FuseGroups(**options).run(result.model).changed  # type: ignore[arg-type]
    return result.model


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.parametrize("form", functions.FORMS, ids=lambda form: "-".join(form))
def test_activation_functions(form: tuple[str, str, str]) -> None:
    text = '<ir_version: 10, opset_import: ["" : 18]> ' + functions.HEAD.format(functions.FORMS[form])
    model = fused(text, newest=25)
    expected = {"Silu": "Swish"}.get(form[0], "Swish" if form[1] == "sigmoid" else form[0])
    assert operators(model) == [expected]
    compare_outputs(parse(text), model, 2e-6)


@pytest.mark.parametrize(
    ("text", "operator", "opset"),
    [
        (NORM.format(LAYER), "LayerNormalization", 17),
        (NORM.format(RMS), "RMSNormalization", 23),
        (NORM.format(RMS.replace("n = Div(x, s) y = Mul(n, gamma)", "y = Div(x, s)")), "RMSNormalization", 23),
        (GROUP, "GroupNormalization", 21),
        (ATTENTION, "Attention", 23),
    ],
)
def test_other_groups(text: str, operator: str, opset: int) -> None:
    model = fused(text)
    assert [one for one in operators(model) if one != "Transpose"] == [operator]
    assert model.opset_import[0].version == opset
    compare_outputs(parse(text), model, 1e-5)


def test_the_result_and_its_name() -> None:
    text = "g (float[2] x) => (float[2] y) <float root = {1.41421354}, float one = {1}, float half = {0.5}> { BODY }"
    header = '<ir_version: 10, opset_import: ["" : 20]> '
    check_pass(
        FuseGroups(),
        header + text.replace("BODY", "d = Div(x, root) e = Erf(d) s = Add(e, one) p = Mul(x, s) y = Mul(p, half)"),
        header + 'g (float[2] x) => (float[2] y) { y = Gelu <approximate = "none"> (x) }',
        atol=1e-6,
        inside_function="left",
    )


def test_what_the_target_does_not_read_stays_with_the_reason() -> None:
    text = '<ir_version: 10, opset_import: ["" : 18]> ' + functions.HEAD.format(functions.FORMS["Gelu", "erf", "torch"])
    result = FuseGroups(newest=19).run(parse(text))
    assert not result.changed
    assert "Gelu is of opset 20" in result.remarks[0].message


def test_a_factor_along_another_axis_is_no_layer_normalization() -> None:
    text = NORM.format(LAYER).replace("float[4] gamma = {1, 2, 3, 4}", "float[3,1] gamma = {1, 2, 3}")
    result = FuseGroups().run(parse(text))
    assert not result.changed
    assert "no such form" in result.remarks[0].message


HIDDEN = """<ir_version: 10, opset_import: ["" : 17]> g (float[2,3,4] z, int64[R] to) => (float[A,B,C] y) <float two = {2},
    float eps = {0.001}, float[4] gamma = {1, 2, 3, 4}, float[BETA] beta = {1, 2, 3, 4}> { x = Reshape(z, to) LAYER }"""


@pytest.mark.parametrize(("beta", "fuses"), [("4", True), ("1,1,1,4", False)])
def test_the_scale_says_what_a_computed_shape_hides(beta: str, fuses: bool) -> None:
    """A rank that is not known may be less than that of a constant with axes in front, which would make them new ones."""
    model = fused(HIDDEN.replace("BETA", beta).replace("LAYER", LAYER))
    assert ("LayerNormalization" in operators(model)) is fuses


def test_a_mean_over_no_named_axes_is_no_layer_normalization() -> None:
    text = NORM.format(
        LAYER.replace("ReduceMean <axes = [-1]> (x)", "ReduceMean(x, none)").replace("<axes = [-1]> (q)", "(q, none)")
    )
    model = onnx.parser.parse_model(text.replace('"" : 17', '"" : 18'))
    model.graph.initializer.append(onnx.helper.make_tensor("none", onnx.TensorProto.INT64, [0], []))
    assert not FuseGroups().run(model).changed


def test_excluded_nodes_stay() -> None:
    text = '<ir_version: 10, opset_import: ["" : 20]> ' + functions.HEAD.format(functions.FORMS["Gelu", "erf", "torch"])
    assert not FuseGroups(left_out=lambda node: node.op_type == "Erf").run(parse(text)).changed
