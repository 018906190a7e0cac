"""Operators of a vendor's domain: what does not depend on them is calibrated."""

import os

import numpy as np
import onnx
import pytest

from onnxqat.backends import schema
from onnxqat.errors import ModelError
from onnxqat.graph import io
from onnxqat.insertion.insert import insert_qdq
from onnxqat.runtime import custom_ops, vendor_operators
from tests.backends.planning import weight

TEXT = f"""<ir_version: 8, opset_import: ["" : 17, "vendor.plugin" : 1]>
g (float[1,2,4,4] x) => (float[1,2,4,4] y, float[1,2,4,4] z) <float[2,2,1,1] w = {weight(2, 2, 1, 1)}> {{
    ["first"] h = Conv(x, w)
    ["theirs"] k = vendor.plugin.Special(h)
    ["behind"] y = Conv(k, w)
    ["beside"] z = Conv(h, w) }}"""
DATA = {"x": np.random.default_rng(0).normal(size=(1, 2, 4, 4)).astype(np.float32)}


def model(text: str = TEXT) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


WITH_CONVOLUTIONS = [name for name in schema.names() if "Conv" in schema.load(name).ops]


@pytest.mark.parametrize("backend", WITH_CONVOLUTIONS)
def test_what_is_in_front_is_quantized(backend: str) -> None:
    result = insert_qdq(model(), backend, data=DATA)
    onnx.checker.check_model(result.model)
    reads = {n.name: n.input[0] for n in result.model.graph.node if n.op_type in ("Conv", "Special")}
    assert reads["first"] == "x_DequantizeLinear_Output"
    assert reads["beside"].startswith("h_DequantizeLinear_Output")
    assert reads["behind"] == "k"
    assert dict(result.plan.float_nodes)["behind"] == "follows vendor.plugin:Special, which calibration cannot run"
    (remark,) = [r for r in result.remarks if "vendor.plugin:Special" in r.message and r.nodes]
    assert remark.nodes == ("theirs",)


def test_ranges_are_those_of_the_model_without_it() -> None:
    text = TEXT.replace("vendor.plugin.Special(h)", "Identity(h)")
    found, whole = (insert_qdq(model(t), data=DATA).model for t in (TEXT, text))
    scales = [{i.name: onnx.numpy_helper.to_array(i) for i in m.graph.initializer} for m in (found, whole)]
    for name in ("x_scale", "h_scale", "z_scale"):
        np.testing.assert_array_equal(scales[0][name], scales[1][name])


def test_nothing_is_left_to_run() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "vendor.plugin" : 1]>
    g (float[2] x) => (float[2] y) { t = vendor.plugin.Special(x) y = Relu(t) }"""
    result = insert_qdq(model(text), data={"x": np.ones(2, np.float32)})
    assert sum(result.quantizers.values()) == 0
    assert [n.op_type for n in result.model.graph.node] == ["Special", "Relu"]


def test_inside_a_branch() -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17, "vendor.plugin" : 1]>
    g (float[1,2,4,4] x, bool c) => (float[1,2,4,4] y) <float[2,2,1,1] w = {weight(2, 2, 1, 1)}> {{
        ["first"] h = Conv(x, w)
        ["if"] y = If(c) <then_branch = a () => (r) {{ ["t"] r = vendor.plugin.Special(h) }},
                          else_branch = b () => (float[1,2,4,4] s) {{ ["n"] s = Conv(h, w) }}> }}"""
    result = insert_qdq(model(text), data=[DATA | {"c": np.asarray(True)}])
    assert "n" in dict(result.plan.float_nodes)
    assert result.quantizers["activation"] == 2


def test_functions_of_the_model_are_no_strangers() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
    g (float[2] x) => (float[2] y) { y = local.f(x) }
    <domain: "local", opset_import: ["" : 17]> f (a) => (b) { b = Neg(a) }"""
    loaded = io.load(model(text))
    assert vendor_operators.dependents(loaded) == []
    assert vendor_operators.runnable_part(loaded) is loaded


def test_libraries_of_the_user_make_the_whole_model_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(custom_ops.VARIABLE, os.pathsep.join(["/none/one.so", "/none/two.so"]))
    assert vendor_operators.dependents(io.load(model())) == []
    with pytest.raises(ModelError, match=r"/none/one\.so") as caught:
        insert_qdq(model(), "onnxruntime-cpu", data=DATA)
    assert caught.value.code == "model-not-runnable"
