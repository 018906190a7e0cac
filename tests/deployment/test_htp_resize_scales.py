"""Scales of 1 and more around interpolations, for HTP alone, with the same codes everywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnxqat
from onnxqat.backends import schema
from onnxqat.deployment.choice import compiler_of
from onnxqat.deployment.deploy import deploy_form
from onnxqat.deployment.handoff import handoff
from onnxqat.deployment.node_trace import tapped
from onnxqat.deployment.workarounds.htp_resize_scales import HtpResizeScales
from onnxqat.graph import io
from onnxqat.placement.table_overrides import Overrides
from onnxqat.runtime.session import Session
from tests.backends.planning import proto, weight
from tests.passes.checks import check_pass, in_function, in_if, run_checked

WEIGHTS = f"""float[96,3,1,1] w = {weight(96, 3, 1, 1)}, float[96,3,1,1] v = {weight(96, 3, 1, 1)}, float[96] b = {weight(96)},
    float[96,96,1,1] k = {weight(96, 96, 1, 1)}, int64[4] size = {{1,96,20,20}}, int64[8] none = {{0,0,0,0,0,0,0,0}}, float one = {{1.0}}"""
TEXT = f"""<ir_version: 8, opset_import: ["" : 13]> g (float[1,3,40,40] x) => (float[1,96,20,20] y%s) <{WEIGHTS}> {{
    a = Conv(x, w, b) c = Conv<strides = [2,2]>(x, v) r = Resize<mode = "%s">(a, , , size) %s y = Conv(s, k) }}"""
SUM = "s = Add(r, c)"
X = np.random.default_rng(1).standard_normal((1, 3, 40, 40)).astype(np.float32) / 8


def quantized(body: str = SUM, outputs: str = "", mode: str = "linear") -> onnx.ModelProto:
    made: onnx.ModelProto = onnxqat.insert_qdq(
        proto(TEXT % (outputs, mode, body)), "qnn-htp", data={"x": X}, overrides=Overrides(exact=True)
    ).model
    return made


def deployed(body: str = SUM, outputs: str = "", mode: str = "linear") -> onnx.ModelProto:
    model = deploy_form(ir.from_proto(quantized(body, outputs, mode)), schema.load("qnn-htp"), [])
    return ir.to_proto(model)


def scales(model: onnx.ModelProto, operator: str) -> list[float]:
    """Scales of the quantizers in front of and behind `operator`."""
    values = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    makers = {o: n for n in model.graph.node for o in n.output}
    (node,) = (n for n in model.graph.node if n.op_type == operator)
    behind = [n for n in model.graph.node if node.output[0] in n.input]
    return [float(values[n.input[1]]) for n in (makers[node.input[0]], *behind)]


def run(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = Session(io.load(model), optimize=False).run({"x": X})
    return found


@pytest.mark.parametrize(
    "body", [SUM, "t = Relu(r) m = MaxPool<kernel_shape = [1,1]>(t) s = Concat<axis = 1>(m)", "s = Sub(c, r)"]
)
def test_the_same_numbers_in_another_unit(body: str) -> None:
    model = deployed(body)
    made = run_checked(HtpResizeScales(), model, atol=0).model
    for wrap in (in_if, in_function):
        assert run_checked(HtpResizeScales(), wrap(model), atol=0).changed
    assert max(scales(model, "Resize")) < 1 <= min(scales(made, "Resize"))
    assert np.array_equal(run(model)["y"], run(made)["y"])


def test_a_layer_between_two_pyramids() -> None:
    """It reads tensors in one unit and writes tensors in another: its weight has to do with both."""
    inner = f"float[96,96,1,1] m = {weight(96, 96, 1, 1)}, float[96] e = {weight(96)}, int64[4] less = {{1,96,10,10}}"
    text = TEXT.replace("int64[4] size", f"{inner}, int64[4] size").replace("y = Conv(s, k)", "y = Conv(h, k)")
    body = """s = Add(r, c) g = Conv(s, m, e) t = Resize<mode = "linear">(g, , , less)
        h = Resize<mode = "linear">(t, , , size)"""
    made = onnxqat.insert_qdq(proto(text % ("", "linear", body)), "qnn-htp", data={"x": X}).model
    model = ir.to_proto(deploy_form(ir.from_proto(made), schema.load("qnn-htp"), []))
    changed = run_checked(HtpResizeScales(), model, atol=0).model
    assert np.array_equal(run(model)["y"], run(changed)["y"])
    values = {t.name: onnx.numpy_helper.to_array(t) for t in changed.graph.initializer}
    makers = {o: n for n in changed.graph.node for o in n.output}
    resizes = [n for n in changed.graph.node if n.op_type == "Resize"]
    assert len(resizes) == 3
    assert all(values[makers[n.input[0]].input[1]] >= 1 for n in resizes)


def test_traced_outputs_keep_their_numbers() -> None:
    traced, taps = tapped(deployed())
    made = HtpResizeScales().run(traced).model
    one, two = run(traced), run(made)
    assert len(taps) == 4
    assert [tap.output for tap in taps if not np.array_equal(one[tap.output], two[tap.output])] == []


@pytest.mark.parametrize(
    ("body", "outputs", "mode"),
    [
        ("s = Sigmoid(r)", "", "linear"),
        (SUM, ", float[1,96,20,20] r", "linear"),
        ("s = Mul(r, c)", "", "linear"),
        ("s = Pad(r, none, one)", "", "linear"),
        (SUM, "", "nearest"),
    ],
    ids=["not proportional", "a result of the model", "a product", "a Pad's constant", "no interpolation"],
)
def test_others_are_left_alone(body: str, outputs: str, mode: str) -> None:
    model = deployed(body, outputs, mode)
    check_pass(HtpResizeScales(), model, None)


def test_htp_gives_the_bits_of_the_file(tmp_path: Path) -> None:
    """96 channels and 20 rows: the last 4 rows of the last 32 channels are those that it computes by other means."""
    compiler = compiler_of(schema.load("qnn-htp"), [])
    if compiler is None or compiler.version() is None:
        pytest.skip("the compiler of qnn-htp is not installed")
    report = handoff(quantized(), "qnn-htp", tmp_path / "bundle", data={"x": X}, limit=1)
    assert [(n.name, n.own_steps) for n in report.nodes if n.own_steps] == []
    assert [c.largest_steps for c in report.outputs] == [0]
