"""Fused chains behind an operator."""

import math

import numpy as np
import pytest

from onnxqat.backends import schema
from onnxqat.placement import fusion_chains
from onnxqat.types import Fixed, RedundantClip, TensorSpec
from tests.backends.planning import decision, edges, graph, plan

CONV = "g (float[1,1,4,4] x) => (float[1,1,4,4] y) <float[1,1,1,1] w = {1}, float lo = {0}, float hi = {6}>"


def behind(body: str, backend: str = "onnxruntime-cpu", header: str = CONV) -> fusion_chains.Fusion:
    return fusion_chains.behind(graph(f"{header} {{ t = Conv(x, w) {body} }}")[0], schema.load(backend))


def members(fusion: fusion_chains.Fusion) -> list[str]:
    return [n.op_type for n in fusion.members]


@pytest.mark.parametrize(
    ("body", "bounds"),
    [
        ("y = Relu(t)", (0.0, math.inf)),
        ("y = Clip(t, lo, hi)", (0.0, 6.0)),
        ("y = Clip(t, , hi)", (-math.inf, 6.0)),
        ("y = Clip(t, lo)", (0.0, math.inf)),
        ("y = Clip(t)", (-math.inf, math.inf)),
    ],
)
def test_bounds(body: str, bounds: tuple[float, float]) -> None:
    fusion = behind(body)
    assert fusion.output.name == "y"
    assert fusion.redundant == (RedundantClip("t", "y", *bounds),)


def test_bounds_of_an_old_clip_are_attributes() -> None:
    text = '<ir_version: 4, opset_import: ["" : 9]> g (float[N] x) => (float[N] y) { y = Clip<%s>(x) }'
    assert fusion_chains.clip_bounds(graph(text % "min = -1.0, max = 2.5")[0]) == (-1.0, 2.5)
    assert fusion_chains.clip_bounds(graph(text % "max = 2.5")[0]) == (-math.inf, 2.5)


def test_computed_bounds_are_no_bounds() -> None:
    header = "g (float[1,1,4,4] x, float hi) => (float[1,1,4,4] y) <float[1,1,1,1] w = {1}>"
    assert behind("y = Clip(t, , hi)", header=header).members == ()


def test_other_activations() -> None:
    assert behind("y = LeakyRelu(t)").members == ()
    assert members(behind("y = LeakyRelu(t)", "openvino-cpu")) == ["LeakyRelu"]
    assert behind("y = LeakyRelu(t)", "openvino-cpu").redundant == ()


@pytest.mark.parametrize("body", ["s = Sigmoid(t) y = Mul(t, s)", "s = Sigmoid(t) y = Mul(s, t)"])
def test_silu(body: str) -> None:
    fusion = behind(body, "openvino-cpu")
    assert members(fusion) == ["Sigmoid", "Mul"]
    assert fusion.output.name == "y"


@pytest.mark.parametrize(
    "body",
    [
        "s = Sigmoid(t) y = Mul(s, s)",
        "s = Sigmoid(t) u = Mul(t, s) y = Add(u, s)",
        "s = Sigmoid(t) u = Mul(t, s) y = Add(u, t)",
        "s = Sigmoid(x) y = Mul(t, s)",
    ],
)
def test_what_only_looks_like_silu(body: str) -> None:
    assert "Mul" not in members(behind(body, "openvino-cpu"))


def test_a_second_reader_refuses() -> None:
    assert behind("u = Relu(t) y = Add(u, t)").members == ()


def test_a_graph_output_refuses() -> None:
    header = "g (float[1,1,4,4] x) => (float[1,1,4,4] t, float[1,1,4,4] y) <float[1,1,1,1] w = {1}>"
    assert behind("y = Relu(t)", header=header).members == ()


def test_a_reader_in_an_inner_graph_refuses() -> None:
    header = "g (float[1,1,4,4] x, bool c) => (float[1,1,4,4] y) <float[1,1,1,1] w = {1}>"
    body = """y = If(c) <then_branch = a () => (float[1,1,4,4] r) { r = Relu(t) },
        else_branch = b () => (float[1,1,4,4] s) <float[1,1,4,4] s0 = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}> { s = Neg(s0) }>"""
    assert behind(body, header=header).members == ()


def test_the_slope_is_not_the_input() -> None:
    header = "g (float[1,1,4,4] x, float[1,1,4,4] z) => (float[1,1,4,4] y) <float[1,1,1,1] w = {1}>"
    assert behind("y = PRelu(z, t)", "openvino-cpu", header).members == ()


def test_the_longest_chain_wins() -> None:
    table = schema.load("openvino-cpu")
    longer = table.model_copy(
        update={
            "fused": (
                schema.Chain(chain=(("Conv",), ("Relu",))),
                schema.Chain(chain=(("Conv",), ("Relu",), ("MaxPool",))),
            )
        }
    )
    first = graph(f"{CONV} {{ t = Conv(x, w) u = Relu(t) y = MaxPool<kernel_shape=[1,1]>(u) }}")[0]
    assert members(fusion_chains.behind(first, longer)) == ["Relu", "MaxPool"]
    assert members(fusion_chains.behind(first, table)) == ["Relu"]


def test_useful_range_in_front_of_saturating_operators() -> None:
    made = graph(
        """g (float[4] x) => (float[4] a, float[4] b, float[4] c) {
            s = Relu(x) g = Sigmoid(s) a = Mul(s, g)
            t = Neg(x) u = Sigmoid(t) v = Tanh(t) b = Add(u, v)
            h = HardSigmoid(b) w = Sigmoid(b) c = Add(h, w) }"""
    )
    values = {v.name: v for n in made for v in n.outputs}
    assert fusion_chains.useful_range(values["s"]) == (-8.0, math.inf)
    assert fusion_chains.useful_range(values["t"]) == (-8.0, 8.0)
    assert fusion_chains.useful_range(values["b"]) is None  # a graph output is read in full
    assert fusion_chains.useful_range(values["u"]) is None


def test_the_useful_range_of_a_hard_sigmoid_is_not_its_window() -> None:
    """255 steps on the window would become 255 steps with an offset of half a step: all of them ties."""
    values = {
        v.name: v for n in graph("g (float[4] x) => (float[4] y) { t = Neg(x) y = HardSigmoid(t) }") for v in n.outputs
    }
    low, high = fusion_chains.useful_range(values["t"]) or (0, 0)
    codes = (np.arange(-127, 128) * ((high - low) / 255) * 0.2 + 0.5) * 255
    assert -2.75 < low < -2.5 < 2.5 < high < 2.75
    assert np.mean((codes - np.rint(codes)) ** 2) < 0.1  # a quarter where all are ties, a twelfth where they lie anyhow


def test_a_reader_of_everything_needs_everything() -> None:
    made = graph("g (float[4] x) => (float[4] y) { t = Neg(x) u = Sigmoid(t) y = Add(t, u) }")
    values = {v.name: v for n in made for v in n.outputs}
    assert fusion_chains.useful_range(values["t"]) is None


@pytest.mark.parametrize(
    ("body", "inner"),
    [
        ("s = Sigmoid(t) y = Mul(t, s)", True),
        ("s = Sigmoid(t) u = Mul(t, s) y = Mul(u, w)", True),
        ("y = HardSwish(t)", True),
        ("y = Relu(t)", False),
    ],
)
def test_exact_puts_a_pair_in_front_of_what_is_computed_by_a_formula(body: str, inner: bool) -> None:
    """Of its own range: the two ends of a SiLU differ. Other tables have no such chains."""
    text = f"{CONV} {{ t = Conv(x, w) {body} }}"
    ends = {"x", "w", "y"}
    assert set(edges(plan(text, "openvino-cpu"))) == ends
    found = plan(text, "openvino-cpu", exact=True)
    assert set(edges(found)) == ends | ({"t"} if inner else set())
    assert all(isinstance(decision(found, tensor), TensorSpec) for tensor in edges(found))


def test_exact_probabilities_have_steps_of_a_power_of_two() -> None:
    """Steps of 1/255 put a Sigmoid of 0 in the middle between two codes."""
    text = f"{CONV} {{ t = Conv(x, w) s = Sigmoid(t) y = Conv(s, w) }}"
    for exact, scale in ((False, np.float32(1 / 255)), (True, 2.0**-8)):
        fixed = decision(plan(text, "qnn-htp", exact=exact), "s")
        assert isinstance(fixed, Fixed)
        assert fixed.qparams.scale == scale


def test_htp_carries_out_no_pair_inside_a_silu() -> None:
    """It asks for one there, which the hand-off writes; a16 was not seen to drop it."""
    text = f"{CONV} {{ t = Conv(x, w) s = Sigmoid(t) a = Mul(t, s) y = Conv(a, w) }}"
    assert not {"s"} & set(edges(plan(text, "qnn-htp")))
    assert "s" not in edges(plan(text, "qnn-htp", exact=True))
    assert "t" in edges(plan(text, "qnn-htp", exact=True))
    assert "s" in edges(plan(text, "qnn-htp-a16", exact=True))
