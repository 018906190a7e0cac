"""affine-to-conv: scale and offset per channel, with no layer in front, as a depthwise convolution."""

from __future__ import annotations

import pytest

from onnxqat.backends import schema
from onnxqat.graph import io
from onnxqat.passes._base import run_passes
from onnxqat.passes._setting import Setting
from onnxqat.passes.affine_to_conv import AffineToConv
from onnxqat.placement.table_overrides import Overrides, apply, select
from tests.passes.checks import check_pass, parse

MAP = "g (float[N,2,3,3] x) => (float[N,2,3,3] y)"
SCALE = "float[1,2,1,1] f = {2, 3}, float[2,1,1] o = {5, 7}"
BN = "float[2] g = {2, -1}, float[2] b = {1, 2}, float[2] m = {0.5, 0}, float[2] v = {3.99999, 0.99999}"
CONV = "y = Conv <group = 2, kernel_shape = [1, 1]> (t, y_factor, y_offset)"


def test_batchnorm_becomes_a_depthwise_convolution() -> None:
    check_pass(
        AffineToConv(),
        f"{MAP} <{BN}> {{ t = Relu(x) y = BatchNormalization(t, g, b, m, v) }}",
        f"{MAP} <float[2,1,1,1] y_factor = {{1, -1}}, float[2] y_offset = {{0.5, 2}}> {{ t = Relu(x) {CONV} }}",
        atol=1e-6,
        inside_function="left",
    )


@pytest.mark.parametrize(
    ("nodes", "factor", "offset"),
    [
        ("m = Mul(t, f) y = Add(m, o)", "{2, 3}", "{5, 7}"),
        ("m = Sub(t, o) y = Div(m, f)", "{0.5, 0.3333333}", "{-2.5, -2.3333333}"),
        ("m = Mul(t, f) y = Sub(s, m)", "{-2, -3}", "{4, 4}"),
        ("y = Mul(f, t)", "{2, 3}", "{0, 0}"),
    ],
    ids=["scaled", "image", "scalar", "factor"],
)
def test_chains_of_arithmetic(nodes: str, factor: str, offset: str) -> None:
    used = [c for c, name in ((SCALE.split(", float[2,")[0], "f"), ("float[2,1,1] o = {5, 7}", "o")) if name in nodes]
    used += ["float s = {4}"] if "s," in nodes else []
    check_pass(
        AffineToConv(),
        f"{MAP} <{', '.join(used)}> {{ t = Relu(x) {nodes} }}",
        f"{MAP} <float[2,1,1,1] y_factor = {factor}, float[2] y_offset = {offset}> {{ t = Relu(x) {CONV} }}",
        atol=1e-5,
        inside_function="left",
    )


def test_audio_of_three_axes_behind_a_batchnorm() -> None:
    check_pass(
        AffineToConv(),
        f"g (float[N,2,3] x) => (float[N,2,3] y) <{BN}> {{ y = BatchNormalization(x, g, b, m, v) }}",
        """g (float[N,2,3] x) => (float[N,2,3] y) <float[2,1,1] y_factor = {1, -1}, float[2] y_offset = {0.5, 2}> {
        y = Conv <group = 2, kernel_shape = [1]> (x, y_factor, y_offset) }""",
        atol=1e-6,
        inside_function="left",
    )


LEFT = {
    "three axes": "g (float[N,2,3] x) => (float[N,2,3] y) <float[2,1] f = {2, 3}, float[2,1] o = {5, 7}> "
    "{ m = Mul(x, f) y = Add(m, o) }",
    "scalars alone": f"{MAP} <float f = {{2}}, float o = {{5}}> {{ m = Mul(x, f) y = Add(m, o) }}",
    "no factor": f"{MAP} <float[2,1,1] o = {{5, 7}}> {{ y = Add(x, o) }}",
    "per column": f"{MAP} <float[3] f = {{1, 2, 3}}> {{ y = Mul(x, f) }}",
    "one channel grows": "g (float[N,1,3,3] x) => (float[N,2,3,3] y) <float[2,1,1] f = {1, 2}> { y = Mul(x, f) }",
    "unknown channels": "g (float[N,C,3,3] x) => (float[N,2,3,3] y) <float[2,1,1] f = {1, 2}> { y = Mul(x, f) }",
    "training": f"{MAP} <{BN}> {{ y, r, s = BatchNormalization <training_mode = 1> (x, g, b, m, v) }}",
    "computed": f"g (float[N,2,3,3] x, float[2] z) => (float[N,2,3,3] y) <{BN}> {{ y = BatchNormalization(x, z, b, m, v) }}",
    "not finite": f"{MAP} <float[2,1,1] f = {{1e30, 1}}, float[2,1,1] e = {{1e30, 1}}> {{ m = Mul(x, f) y = Mul(m, e) }}",
}


@pytest.mark.parametrize("text", LEFT.values(), ids=LEFT)
def test_left_alone(text: str) -> None:
    check_pass(AffineToConv(), text, None, inside_function="skip", inside_if="skip")


def test_what_something_else_reads_ends_a_chain() -> None:
    text = (
        f"""g (float[N,2,3,3] x) => (float[N,2,3,3] y, float[N,2,3,3] m) <{SCALE}> {{ m = Mul(x, f) y = Add(m, o) }}"""
    )
    model = AffineToConv().run(parse(text)).model
    assert [node.op_type for node in model.graph.node] == ["Conv", "Add"]


def test_excluded_node_stays() -> None:
    model = parse(f"{MAP} <{SCALE}> {{ m = Mul(x, f) [shift] y = Add(m, o) }}")
    selection = select(io.load(model), Overrides(exclude=("shift",)))
    setting = Setting(schema.load("onnxruntime-cpu"), selection=selection)
    assert not run_passes(model, [AffineToConv(setting)]).changed


@pytest.mark.parametrize(
    ("backend", "overrides", "runs"),
    [
        ("onnxruntime-cpu", Overrides(), True),
        ("openvino-cpu", Overrides(), True),
        ("tidl", Overrides(), True),
        ("tidl", Overrides(weight_bits=4), False),  # one scale for all factors
        ("tensorrt", Overrides(), False),  # no pairs around Mul
        ("onnxruntime-cpu", Overrides(first_last_bits=8), False),
        ("onnxruntime-cpu", Overrides(activations="dynamic"), False),
    ],
)
def test_tables(backend: str, overrides: Overrides, runs: bool) -> None:
    table = apply(overrides, schema.load(backend))
    assert (AffineToConv.for_backend(Setting(table, overrides)) is not None) is runs
