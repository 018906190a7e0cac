"""keep-batchnorm: the form of a BatchNormalization that folds into quantized weights."""

import numpy as np
import onnx
import pytest

from onnxqat.graph import batchnorm, io
from onnxqat.passes import _base
from onnxqat.passes.batchnorm_to_affine import BatchnormToAffine
from onnxqat.passes.fold_batchnorm import FoldBatchnorm
from onnxqat.passes.keep_batchnorm import KeepBatchnorm
from tests.passes.checks import check_pass, compare_outputs, constants, parse

BN = "float[3] g = {2, -1, 0}, float[3] b = {1, 2, 3}, float[3] m = {0.5, 0.25, -1}, float[3] v = {4, 1, 0.25}"


def test_the_sign_of_gamma_goes_into_the_weight_and_the_bias_into_the_mean() -> None:
    check_pass(
        KeepBatchnorm(),
        f"""g (float[N,1,2,2] x) => (float[N,3,2,2] y)
        <{BN}, float[3,1,1,1] w = {{1, 2, 3}}, float[3] c0 = {{1, 2, 4}}> {{
        [conv] c = Conv(x, w, c0) [bn] y = BatchNormalization(c, g, b, m, v) }}""",
        """g (float[N,1,2,2] x) => (float[N,3,2,2] y) <float[3] g = {2, 1, 0}, float[3] b = {1, 2, 3},
        float[3] m = {-0.5, 1.75, -5}, float[3] v = {4, 1, 0.25}, float[3,1,1,1] w = {1, -2, 3}> {
        [conv] c = Conv(x, w) [bn] y = BatchNormalization(c, g, b, m, v) }""",
        atol=1e-5,
    )


def test_gemm_with_transposed_weight_and_a_scaled_bias() -> None:
    check_pass(
        KeepBatchnorm(),
        f"""g (float[N,1] x) => (float[N,3] y) <{BN}, float[3,1] w = {{1, 2, 3}}, float[1,3] c = {{1, 1, 2}}> {{
        h = Gemm <transB = 1, beta = 2.0> (x, w, c) y = BatchNormalization(h, g, b, m, v) }}""",
        """g (float[N,1] x) => (float[N,3] y) <float[3] g = {2, 1, 0}, float[3] b = {1, 2, 3},
        float[3] m = {-1.5, 1.75, -5}, float[3] v = {4, 1, 0.25}, float[3,1] w = {1, -2, 3}> {
        h = Gemm <transB = 1> (x, w) y = BatchNormalization(h, g, b, m, v) }""",
        atol=1e-5,
    )


@pytest.mark.parametrize(
    "layer", ["h = Gemm(x, w)", "h = MatMul(x, w)", "h = ConvTranspose(x, w)"], ids=["Gemm", "MatMul", "ConvTranspose"]
)
def test_columns_of_other_layers_change_their_signs(layer: str) -> None:
    shape, more = ("1,3,1,1", ",2,2") if "Conv" in layer else ("1,3", "")
    text = f"""g (float[N,1{more}] x) => (float[N,3{more}] y) <{BN}, float[{shape}] w = {{1, 2, 3}}> {{
        {layer} y = BatchNormalization(h, g, b, m, v) }}"""
    # the type of what a MatMul of a function reads is not known there
    result = check_kept(text, inside_function="MatMul" not in layer)
    np.testing.assert_array_equal(constants(result.graph)["w"].ravel(), [1, -2, 3])


def check_kept(text: str, *, inside_function: bool = True) -> onnx.ModelProto:
    model = parse(text)
    result = KeepBatchnorm().run(model)
    assert result.changed
    compare_outputs(model, result.model, 1e-5)
    node = next(n for n in io.load(result.model).graph if batchnorm.is_batchnorm(n))
    assert batchnorm.is_kept(node)
    assert batchnorm.kept_behind(batchnorm.layer(node)) is node
    return result.model


def test_constants_that_others_read_are_copied() -> None:
    # one constant is gamma and variance of both, as exporters write ones
    text = """g (float[N,1,2,2] x) => (float[N,3,2,2] y) <float[3] o = {1, 1, 1}, float[3] z = {0, 0, 0},
        float[3,1,1,1] w = {1, 2, 3}, float[3,3,1,1] u = {1, 2, 3, 4, 5, 6, 7, 8, 9}> {
        c = Conv(x, w) p = BatchNormalization(c, o, z, z, o) d = Conv(p, u) y = BatchNormalization(d, o, z, z, o) }"""
    result = check_kept(text)
    read = [name for node in result.graph.node if node.op_type == "BatchNormalization" for name in node.input[1:]]
    assert len(read) == len(set(read)) == 8


LEFT = {
    "read elsewhere": "c = Conv(x, w) t = BatchNormalization(c, g, b, m, v) y = Add(t, c)",
    "computed weight": "w2 = Neg(w) c = Conv(x, w2) y = BatchNormalization(c, g, b, m, v)",
    "shared weight": "o = Conv(x, w) c = Conv(x, w) t = BatchNormalization(c, g, b, m, v) y = Add(t, o)",
    "computed bias": "k = Neg(b) c = Conv(x, w, k) y = BatchNormalization(c, g, b, m, v)",
    "no layer": "c = Relu(z) y = BatchNormalization(c, g, b, m, v)",
}


@pytest.mark.parametrize("nodes", LEFT.values(), ids=LEFT)
def test_left_to_the_other_pass(nodes: str) -> None:
    text = f"g (float[N,1,2,2] x, float[N,3,2,2] z) => (float[N,3,2,2] y) <{BN}, float[3,1,1,1] w = {{1, 2, 3}}> {{ {nodes} }}"
    check_pass(KeepBatchnorm(), text, None)


def test_a_refusal_is_a_remark() -> None:
    text = f"""g (float[N,1,2,2] x) => (float[N,3,2,2] y) <{BN}, float[3,1,1,1] w = {{1, 2, 3}}> {{
        [conv] c = Conv(x, w) [bn] y = BatchNormalization(c, g, b, m, v) }}"""
    result = KeepBatchnorm(lambda layer: f"{layer.name} is not for it").run(parse(text))
    assert not result.changed
    assert "conv is not for it" in result.remarks[0].message


def test_what_is_kept_is_folded_only_on_demand() -> None:
    text = f"""g (float[N,1,2,2] x) => (float[N,3,2,2] y) <{BN}, float[3,1,1,1] w = {{1, 2, 3}}> {{
        [conv] c = Conv(x, w) [bn] y = BatchNormalization(c, g, b, m, v) }}"""
    kept = KeepBatchnorm().run(parse(text)).model
    assert not _base.run_passes(kept, [FoldBatchnorm(), BatchnormToAffine()]).changed
    folded = FoldBatchnorm(kept=True).run(kept).model
    assert [n.op_type for n in folded.graph.node] == ["Conv"]
    compare_outputs(parse(text), folded, 1e-5)
