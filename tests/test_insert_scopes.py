"""insert_qdq inside branches of If, through the bridge and back; and in functions, which become part of the graph."""

from typing import Any

import numpy as np
import onnx
import pytest

from onnxqat.graph import io, qdq
from onnxqat.insertion.insert import insert_qdq
from onnxqat.passes.deploy_form import DeployForm
from onnxqat.placement.table_overrides import Overrides
from tests.backends.planning import proto, weight
from tests.passes.checks import ort_run

TEXT = f"""g (float[N,1,6,6] x, bool c) => (float[N,2,6,6] y)
<float[2,1,3,3] w = {weight(2, 1, 3, 3)}, float[2,2,3,3] v = {weight(2, 2, 3, 3)}, float[2] b = {{0.25, -0.5}}> {{
    a = Conv<pads = [1,1,1,1]>(x, w, b)
    ["choose"] t = If(c) <
        then_branch = yes () => (float[N,2,6,6] r) {{
            k = Constant<value = float[2] {{0.5, 1}}>() p = Conv<pads = [1,1,1,1]>(a, v, k) r = Relu(p) }},
        else_branch = no () => (float[N,2,6,6] s) {{ k = Conv<pads = [1,1,1,1]>(a, v) s = Sigmoid(k) }}>
    y = Conv<pads = [1,1,1,1]>(t, v) }}"""
# One table of each placement; some of the others leave a convolution in float, or have 16-bit steps below this noise.
BACKENDS = ["academic", "onnxruntime-cpu", "openvino-cpu", "tensorrt"]


def batches(*taken: bool) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(size=(4, 1, 6, 6)).astype(np.float32), "c": np.asarray(c)} for c in taken]


def quantized(backend: str, *taken: bool) -> Any:
    return insert_qdq(proto(TEXT), backend, data=batches(*taken))


def branch(model: onnx.ModelProto, name: str) -> list[str]:
    (node,) = [n for n in model.graph.node if n.op_type == "If"]
    return [n.op_type for a in node.attribute if a.name == name for n in a.g.node]


@pytest.mark.parametrize("backend", BACKENDS)
def test_both_branches_are_close_to_the_float_model(backend: str) -> None:
    found = quantized(backend, True, False).model
    onnx.checker.check_model(found, full_check=True)
    limit = 1e-2 if backend != "academic" else 0.2  # 4 bits in the middle
    for feeds in batches(True, False):
        exact, near = ort_run(proto(TEXT), feeds)["y"], ort_run(found, feeds)["y"]
        assert 0 < np.mean((near - exact) ** 2) / np.mean(exact**2) < limit
    for name in ("then_branch", "else_branch"):
        assert "QuantizeLinear" in branch(found, name)


def test_a_branch_is_an_integer_graph_of_its_own() -> None:
    found = quantized("onnxruntime-cpu", True, False).model
    graphs = {a.name: a.g for n in found.graph.node if n.op_type == "If" for a in n.attribute}
    for graph in graphs.values():
        inside = {out: node.op_type for node in graph.node for out in node.output}
        (conv,) = [n for n in graph.node if n.op_type == "Conv"]
        assert [inside.get(name) for name in conv.input[:2]] == ["DequantizeLinear", "DequantizeLinear"]
    tied = {q.tensor: str(q.scales[0].name) for q in qdq.quantizers(io.load(found))}
    assert tied["t"] == tied["r_QuantizeLinear_Input"]  # a pair behind the If repeats the one in the branch


def test_a_branch_that_no_batch_takes_stays_float() -> None:
    result = quantized("onnxruntime-cpu", True)
    assert "QuantizeLinear" in branch(result.model, "then_branch")
    assert "QuantizeLinear" not in branch(result.model, "else_branch")
    reasons = dict(result.plan.float_nodes)
    assert reasons["s_Sigmoid"] == "no calibration batch takes this branch"
    assert not any("never held" in r.message for r in result.remarks)
    (warned,) = [r for r in result.remarks if r.concern == "result"]
    assert "takes else_branch of 'choose': the ranges of 2 tensors behind it" in warned.message
    (feeds,) = batches(False)
    exact, near = ort_run(proto(TEXT), feeds)["y"], ort_run(result.model, feeds)["y"]
    assert np.mean((near - exact) ** 2) / np.mean(exact**2) < 2e-2


@pytest.mark.parametrize("backend", BACKENDS)
def test_through_the_bridge_and_back(backend: str) -> None:
    torch = pytest.importorskip("torch")
    from onnxqat.bridge.export.write_back import write_back
    from onnxqat.bridge.importing.importer import to_torch

    source = quantized(backend, True, False).model
    module = to_torch(source)
    assert write_back(module, source).SerializeToString() == source.SerializeToString()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.03)
    tuned = write_back(module, source)
    deployed = DeployForm().run(tuned).model
    for feeds in batches(True, False):
        expected = module(*(torch.from_numpy(feeds[name]) for name in ("x", "c"))).detach().numpy()
        for model in (tuned, deployed):
            # A sum of float32 products in another order may round a code the other way: rare, and one step.
            difference = np.abs(ort_run(model, feeds)["y"] - expected)
            assert np.mean(difference > 1e-5) < 0.01


FUNCTIONS = f"""<ir_version: 10, opset_import: ["" : 17, "local" : 1]>
g (float[N,2,6,6] x) => (float[N,2,6,6] y) {{ ["one"] t = local.layer<alpha = 0.1>(x) ["two"] y = local.layer(t) }}
<domain: "local", opset_import: ["" : 18]> layer <alpha: float = 0.3>(a) => (b) {{
    w = Constant<value = float[2,2,1,1] {weight(2, 2, 1, 1)}>()
    ["conv"] m = Conv(a, w) ["act"] b = LeakyRelu<alpha: float = @alpha>(m) }}"""


def inserted(**options: Any) -> Any:
    data = {"x": np.random.default_rng(0).normal(size=(8, 2, 6, 6)).astype(np.float32)}
    result = insert_qdq(onnx.parser.parse_model(FUNCTIONS), data=data, overrides=Overrides(**options))
    onnx.checker.check_model(result.model, full_check=True)
    exact, near = (ort_run(m, data)["y"] for m in (onnx.parser.parse_model(FUNCTIONS), result.model))
    assert np.mean((near - exact) ** 2) / np.mean(exact**2) < 5e-3  # 8 bits with short scales
    return result


def test_each_call_of_a_function_has_ranges_of_its_own() -> None:
    result = inserted()
    assert not result.model.functions
    assert result.quantizers == {"activation": 5, "weight": 2, "bias": 0}
    scales = {q.tensor: float(q.qparams.scale) for q in qdq.quantizers(io.load(result.model)) if q.role == "activation"}
    assert {"x", "m", "t", "m_2", "y_QuantizeLinear_Input"} == set(scales)
    assert scales["m"] != scales["m_2"]
    assert "onnxqat.left_out" not in str(result.model)


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"exclude": ("conv",)}, {"conv", "conv_2"}),
        ({"exclude": ("m",)}, {"conv", "conv_2"}),
        ({"exclude": ("two",)}, {"conv_2", "act_2"}),
        ({"exclude_ops": ("layer",)}, {"conv", "act", "conv_2", "act_2"}),
    ],
)
def test_selecting_by_what_is_written_in_the_file(options: dict[str, Any], left: set[str]) -> None:
    result = inserted(**options)
    assert {name for name, reason in result.plan.float_nodes if "excluded" in reason} == left
    assert "onnxqat.left_out" not in str(result.model)


STALE = f"""g (float[N,8,8,3] x, float[N,8,8,2] z) => (float[N,2,6,6] y)
<float[2,5,3,3] w = {weight(2, 5, 3, 3)}, float[N,8,8,3] a, float[N,7,8,8] c> {{
    a = Transpose<perm = [0,3,1,2]>(x) b = Transpose<perm = [0,3,1,2]>(z) c = Concat<axis = 1>(a, b) y = Conv(c, w) }}"""


def test_stale_shapes_of_the_file_do_not_reach_the_pairs() -> None:
    model = proto(STALE)
    rng = np.random.default_rng(0)
    feeds = {name: rng.normal(size=(2, 8, 8, k)).astype(np.float32) for name, k in (("x", 3), ("z", 2))}
    found = insert_qdq(model, "onnxruntime-cpu", data=[feeds])
    ort_run(found.model, feeds)
    onnx.shape_inference.infer_shapes(found.model, strict_mode=True)
    assert [set(r.nodes) for r in found.remarks if "contradict" in r.message] == [{"a", "c"}]
