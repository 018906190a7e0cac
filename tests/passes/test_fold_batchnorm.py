"""fold-batchnorm: the layer takes the BatchNormalization."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from onnxqat.graph import io
from onnxqat.passes._batchnorm import affine
from onnxqat.passes.fold_batchnorm import FoldBatchnorm
from onnxqat.passes.lift_constants import LiftConstants
from tests.passes.checks import check_pass, compare_outputs, parse

BN = "<float[3] g = {2, -1, 0}, float[3] b = {1, 2, 3}, float[3] m = {0.5, 0, -1}, float[3] v = {3.99999, 0.99999, 0.24999}"


def scalars(shape: str, values: str, name: str = "w", more: str = "") -> str:
    return f"{BN}, float[{shape}] {name} = {{{values}}}{more}>"


def test_conv_without_bias() -> None:
    check_pass(
        FoldBatchnorm(),
        f"""g (float[N,1,2,2] x) => (float[N,3,2,2] y) {scalars("3,1,1,1", "1, 2, 3")} {{
        [conv] c = Conv(x, w) y = BatchNormalization(c, g, b, m, v) }}""",
        """g (float[N,1,2,2] x) => (float[N,3,2,2] y)
        <float[3,1,1,1] w = {1, -2, 0}, float[3] conv_bias = {0.5, 2, 3}> { [conv] y = Conv(x, w, conv_bias) }""",
        atol=1e-5,
        inside_if="same",
    )


def test_conv_with_bias_keeps_the_names() -> None:
    check_pass(
        FoldBatchnorm(),
        f"""g (float[N,1,2,2] x) => (float[N,3,2,2] y) {scalars("3,1,1,1", "1, 2, 3", more=", float[3] c0 = {1, 1, 1}")} {{
        c = Conv(x, w, c0) t = BatchNormalization(c, g, b, m, v) y = Relu(t) }}""",
        """g (float[N,1,2,2] x) => (float[N,3,2,2] y)
        <float[3,1,1,1] w = {1, -2, 0}, float[3] c0 = {1.5, 1, 3}> { t = Conv(x, w, c0) y = Relu(t) }""",
        atol=1e-5,
    )


def test_shared_weight_is_copied() -> None:
    check_pass(
        FoldBatchnorm(),
        f"""g (float[N,1,2,2] x) => (float[N,3,2,2] y) {scalars("3,1,1,1", "1, 2, 3")} {{
        o = Conv(x, w) c = Conv(x, w) t = BatchNormalization(c, g, b, m, v) y = Add(t, o) }}""",
        """g (float[N,1,2,2] x) => (float[N,3,2,2] y) <float[3,1,1,1] w = {1, 2, 3},
        float[3,1,1,1] w_folded = {1, -2, 0}, float[3] c_bias = {0.5, 2, 3}> {
        o = Conv(x, w) t = Conv(x, w_folded, c_bias) y = Add(t, o) }""",
        atol=1e-5,
    )


def test_gemm_with_transposed_weight_alpha_and_beta() -> None:
    check_pass(
        FoldBatchnorm(),
        f"""g (float[N,1] x) => (float[N,3] y) {scalars("3,1", "1, 2, 3", more=", float[1,3] c = {1, 1, 1}")} {{
        h = Gemm <transB = 1, alpha = 0.5, beta = 2.0> (x, w, c) y = BatchNormalization(h, g, b, m, v) }}""",
        """g (float[N,1] x) => (float[N,3] y) <float[3,1] w = {1, -2, 0}, float[1,3] c = {2.5, 0, 3}> {
        y = Gemm <transB = 1, alpha = 0.5> (x, w, c) }""",
        atol=1e-5,
    )


def test_matmul_gets_an_add() -> None:
    check_pass(
        FoldBatchnorm(),
        f"""g (float[N,1] x) => (float[N,3] y) {scalars("1,3", "1, 2, 3")} {{
        [mm] h = MatMul(x, w) y = BatchNormalization(h, g, b, m, v) }}""",
        """g (float[N,1] x) => (float[N,3] y) <float[1,3] w = {1, -2, 0}, float[3] mm_bias = {0.5, 2, 3}> {
        [mm] h = MatMul(x, w) y = Add(h, mm_bias) }""",
        atol=1e-5,
        inside_function="left",
    )


def test_matmul_with_add() -> None:
    check_pass(
        FoldBatchnorm(),
        f"""g (float[N,1] x) => (float[N,3] y) {scalars("1,3", "1, 2, 3", more=", float[3] c = {1, 1, 1}")} {{
        h = MatMul(x, w) a = Add(c, h) y = BatchNormalization(a, g, b, m, v) }}""",
        """g (float[N,1] x) => (float[N,3] y) <float[1,3] w = {1, -2, 0}, float[3] c = {1.5, 1, 3}> {
        h = MatMul(x, w) y = Add(c, h) }""",
        atol=1e-5,
        inside_function="left",
    )


LEFT = {
    "read elsewhere": "c = Conv(x, w) t = BatchNormalization(c, g, b, m, v) y = Add(t, c)",
    "in front of a layer": "t = BatchNormalization(z, g, b, m, v) y = Mul(t, w)",
    "computed weight": "w2 = Neg(w) c = Conv(x, w2) y = BatchNormalization(c, g, b, m, v)",
    "no layer": "c = Relu(z) y = BatchNormalization(c, g, b, m, v)",
}


@pytest.mark.parametrize("nodes", LEFT.values(), ids=LEFT)
def test_left_alone(nodes: str) -> None:
    text = f"g (float[N,1,2,2] x, float[N,3,2,2] z) => (float[N,3,2,2] y) {scalars('3,1,1,1', '1, 2, 3')} {{ {nodes} }}"
    check_pass(FoldBatchnorm(), text.replace("[3,1,1,1] w", "[3,1,1] w") if "Mul" in nodes else text, None)


LEFT_ON_ROWS = {
    "computed weight": "d = Neg(w) h = Gemm(x, d) y = BatchNormalization(h, g, b, m, v)",
    "computed bias": "d = Neg(c) h = Gemm(x, w, d) y = BatchNormalization(h, g, b, m, v)",
    "product read elsewhere": "h = MatMul(x, w) a = Add(c, h) t = BatchNormalization(a, g, b, m, v) y = Add(t, h)",
    "Add of a matrix": "h = MatMul(x, w) a = Add(q, h) y = BatchNormalization(a, g, b, m, v)",
}


@pytest.mark.parametrize("nodes", LEFT_ON_ROWS.values(), ids=LEFT_ON_ROWS)
def test_left_alone_on_rows(nodes: str) -> None:
    more = ", float[3] c = {1, 1, 1}, float[2,3] q = {1, 2, 3, 4, 5, 6}"
    text = f"g (float[2,1] x) => (float[2,3] y) {scalars('1,3', '1, 2, 3', more=more)} {{ {nodes} }}"
    check_pass(FoldBatchnorm(), text, None)


@pytest.mark.parametrize(
    "nodes",
    ["h = Gemm(x, k)", "h = Gemm(x, w, c)", "h = MatMul(x, k)", "p = MatMul(x, k) h = Add(p, o)"],
    ids=["Gemm", "bias of Gemm", "MatMul", "MatMul and Add"],
)
def test_rows_that_do_not_fit_are_left_alone(nodes: str) -> None:
    more = ", float[2] c = {1, 1}, float[1,1] k = {1}, float[1] o = {1}"
    text = f"""g (float[2,1] x) => (float[2,3] y) {scalars("1,3", "1, 2, 3", more=more)} {{
        {nodes} y = BatchNormalization(h, g, b, m, v) }}"""
    assert not FoldBatchnorm().run(parse(text)).changed


@pytest.mark.parametrize("nodes", ["h = MatMul(x, w)", "p = MatMul(x, w) h = Add(p, b)"])
def test_overflow_on_rows_is_left_alone(nodes: str) -> None:
    text = f"""g (float16[N,1] x) => (float16[N,1] y) <float16[1,1] w = {{31571}}, float16[1] g = {{22080}},
        float16[1] b = {{0}}, float16[1] m = {{0}}, float16[1] v = {{15360}}> {{
        {nodes} y = BatchNormalization(h, g, b, m, v) }}"""
    assert not FoldBatchnorm().run(parse(text)).changed


def test_training_mode_is_left_alone() -> None:
    text = f"""g (float[N,1,2,2] x) => (float[N,3,2,2] y) {scalars("3,1,1,1", "1, 2, 3")} {{
        c = Conv(x, w) y, rm, rv = BatchNormalization <training_mode = 1> (c, g, b, m, v) }}"""
    check_pass(FoldBatchnorm(), text, None, inside_if="skip", inside_function="skip")


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_channels_that_do_not_fit_are_left_alone(op: str) -> None:
    text = f"""g (float[N,1,2,2] x) => (float[N,3,2,2] y) {scalars("1,1,1,1", "1")} {{
        c = {op}(x, w) y = BatchNormalization(c, g, b, m, v) }}"""
    assert not FoldBatchnorm().run(parse(text)).changed


def test_overflow_is_left_alone() -> None:
    # float16 constants are bit patterns in ONNX text: 60000 times 100
    text = """g (float16[N,1,2,2] x) => (float16[N,1,2,2] y) <float16[1,1,1,1] w = {31571}, float16[1] g = {22080},
        float16[1] b = {0}, float16[1] m = {0}, float16[1] v = {15360}> {
        c = Conv(x, w) y = BatchNormalization(c, g, b, m, v) }"""
    assert not FoldBatchnorm().run(parse(text)).changed


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_groups(op: str, groups: int) -> None:
    rng = np.random.default_rng(groups)
    shape = (8, 4 // groups, 3, 3) if op == "Conv" else (4, 8 // groups, 3, 3)
    tensors = {"w": rng.normal(size=shape), "c": rng.normal(size=8)}
    tensors |= {"g": rng.normal(size=8), "b": rng.normal(size=8), "m": rng.normal(size=8), "v": rng.random(8) + 0.1}
    graph = helper.make_graph(
        [
            helper.make_node(op, ["x", "w", "c"], ["h"], group=groups),
            helper.make_node("BatchNormalization", ["h", "g", "b", "m", "v"], ["y"], epsilon=1e-3),
        ],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 4, 5, 5])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 8, None, None])],
        [numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in tensors.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    result = FoldBatchnorm().run(model)
    assert [n.op_type for n in result.model.graph.node] == [op]
    compare_outputs(model, result.model, 1e-4)  # of values up to 100


@pytest.mark.parametrize("name", ["resnet20_cifar10_bn", "dscnn_kws_bn", "mobilenetv2_imagenet_bn", "ppocr_v2_cls"])
def test_real_models(shared, name: str) -> None:
    model = LiftConstants().run(shared / "data" / "models" / f"{name}.onnx").model
    result = FoldBatchnorm().run(model)
    assert not any(n.op_type == "BatchNormalization" for n in result.model.graph)
    before, after = io.to_proto(model), io.to_proto(result.model)
    onnx.checker.check_model(after, full_check=True)
    compare_outputs(before, after, 1e-4, size=1)


def test_parameters_of_different_lengths_are_left_alone() -> None:
    text = """g (float[N,3] x) => (float[N,3] y) <float[1] g = {2}, float[3] b = {1, 2, 3}, float[3] m = {0, 0, 0},
    float[3] v = {1, 1, 1}> { y = BatchNormalization(x, g, b, m, v) }"""
    node = ir.from_proto(parse(text)).graph[0]
    assert affine(node) == "parameters of BatchNormalization have different lengths"


def test_a_bias_of_another_length_is_left_alone() -> None:
    text = """g (float[1,2,4,4] x) => (float[1,2,4,4] y)
        <float[2,2,1,1] w = {1, 2, 3, 4}, float[3] b = {1, 2, 3}, float[2] c = {1, 1}> {
        t = Conv(x, w, b) y = BatchNormalization(t, c, c, c, c) }"""
    assert not FoldBatchnorm().run(parse(text)).changed


def test_what_a_later_pass_replaces_is_a_detail() -> None:
    text = "g (float[N,2,3,3] x) => (float[N,2,3,3] y) <float[2] a = {1, 2}> { y = BatchNormalization(x, a, a, a, a) }"
    (remark,) = FoldBatchnorm().run(parse(text)).remarks
    assert (remark.concern, remark.nodes) == ("detail", ("BatchNormalization->y",))
