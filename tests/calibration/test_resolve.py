"""From plans and ranges to parameters."""

import math

import numpy as np
import onnx_ir as ir
import pytest

from onnxqat.calibration.observers import create
from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.calibration.resolve import Resolved, resolve, tensors_to_observe
from onnxqat.types import (
    Derived,
    Edge,
    QParams,
    QType,
    QuantPlan,
    RedundantClip,
    SaturatingRange,
    Shared,
    TensorSpec,
)
from tests.backends.planning import proto

U8, I8 = QType("uint8", 0, 255), QType("int8", -128, 127)
ACT = TensorSpec(U8, symmetric=False)
SIGNED = TensorSpec(I8)
WEIGHT = TensorSpec(I8, granularity="channel", axis=0, role="weight")
MODEL = """g (float[1,1,2,2] x) => (float[1,3,2,2] y) <float[3,1,1,1] w = {1, 2, 4}, float[3] b = {1, 2, 3}> {
    ["n"] t = Conv(x, w, b) y = Relu(t) }"""


def seen(spec: TensorSpec, low: float, high: float) -> BaseObserver:
    observer = create(spec)
    observer.update(np.float32([low, high]))
    return observer


def resolved(
    edges: list[Edge], ranges: dict[str, tuple[float, float]], clips: tuple[RedundantClip, ...] = (), text: str = MODEL
) -> Resolved:
    plan = QuantPlan("test", tuple(edges), clips)
    wanted = tensors_to_observe(plan)
    observers = {t: seen(s, *ranges[t]) for t, s in wanted.items()}
    return resolve(plan, observers, ir.from_proto(proto(text)))


def qparams(found: Resolved, tensor: str) -> QParams:
    (placement,) = [p for p in found.placements if p.tensor == tensor]
    return placement.qparams


# ------------------------------------------------------------------ groups
GROUP = [
    Edge("a", ACT, "r"),
    Edge("b", Shared("a"), "r"),
    Edge("c", Shared("a"), "r", (("n", 0),)),
    Edge("d", ACT, "r"),
]


def test_a_group_has_the_merged_range() -> None:
    found = resolved(GROUP, {"a": (0, 1), "b": (-1, 0.5), "c": (0, 2), "d": (0, 1)})
    for tensor in "abc":
        assert float(qparams(found, tensor).scale) == pytest.approx(3 / 255)
        assert int(qparams(found, tensor).zero_point) == 85
    assert float(qparams(found, "d").scale) == pytest.approx(1 / 255)
    assert [p.group for p in found.placements] == ["a", "a", "a", None]
    assert [p.consumers for p in found.placements] == [None, None, (("n", 0),), None]


def test_observers_are_left_as_they_are() -> None:
    plan = QuantPlan("test", tuple(GROUP))
    observers = {t: seen(ACT, 0, 1 + i) for i, t in enumerate("abcd")}
    first = resolve(plan, observers, ir.from_proto(proto(MODEL)))
    assert [float(observers[t].high[0]) for t in "abcd"] == [1, 2, 3, 4]
    again = resolve(plan, observers, ir.from_proto(proto(MODEL)))
    assert all(p.qparams.same(q.qparams) for p, q in zip(first.placements, again.placements, strict=True))


def test_members_are_observed_for_the_root() -> None:
    plan = QuantPlan("test", (Edge("a", SIGNED, "r"), Edge("b", Shared("a"), "r"), Edge("w", WEIGHT, "r")))
    assert tensors_to_observe(plan) == {"a": SIGNED, "b": SIGNED}


def test_a_root_that_another_reader_wants_finer() -> None:
    coarse = TensorSpec(QType("int8", -8, 7))
    edges = [Edge("a", coarse, "r"), Edge("b", Shared("a"), "r"), Edge("a", SIGNED, "r", (("n", 0),))]
    found = resolved(edges, {"a": (-1, 1), "b": (-4, 4)})
    grids = [(p.tensor, p.qparams.qtype.bits, float(p.qparams.scale), p.group) for p in found.placements]
    assert grids[0][:2] == ("a", 4)
    assert grids[0][2] == grids[1][2]
    assert grids[2][1] == 8
    assert grids[2][2] == pytest.approx(1 / 127.5, rel=1e-2)
    assert [g[3] for g in grids] == ["a", "a", None]


def test_a_root_that_a_reader_takes_on_the_grid_of_another_group() -> None:
    unsigned = TensorSpec(QType.of(8, signed=False))
    on_joined = Edge("a", Shared("joined"), "r", (("n", 0),))
    edges = (Edge("a", unsigned, "r"), Edge("b", Shared("a"), "r"), on_joined, Edge("joined", SIGNED, "r"))
    wanted = tensors_to_observe(QuantPlan("test", edges))
    assert wanted == {"a": unsigned, "b": unsigned, "joined": SIGNED}
    observers = {name: seen(spec, *((0, 1) if spec == unsigned else (-4, 4))) for name, spec in wanted.items()}
    found = resolve(QuantPlan("test", edges), observers, ir.from_proto(proto(MODEL)))
    assert [p.qparams.qtype.storage for p in found.placements] == ["uint8", "uint8", "int8", "int8"]
    scales = [float(p.qparams.scale) for p in found.placements]
    assert scales[0] == scales[1] < scales[2] == scales[3]


def test_always_zero() -> None:
    found = resolved([Edge("x", ACT, "r")], {"x": (0, 0)})
    assert float(qparams(found, "x").scale) == 1
    assert [r.message for r in found.remarks] == ["always zero, so that the scale is 1: 'x'"]


# ------------------------------------------------------------------ redundant clips
def clip(low: float, high: float) -> tuple[RedundantClip, ...]:
    return (RedundantClip("t", "y", low, high),)


@pytest.mark.parametrize(
    ("spec", "bounds"), [(ACT, (0, np.inf)), (ACT, (-np.inf, np.inf)), (SIGNED, (-np.inf, np.inf))]
)
def test_a_repeated_clip_needs_nothing(spec: TensorSpec, bounds: tuple[float, float]) -> None:
    found = resolved([Edge("y", spec, "r")], {"y": (0, 3)}, clip(*bounds))
    assert [p.tensor for p in found.placements] == ["y"]
    assert found.remarks == ()


@pytest.mark.parametrize("spec", [SIGNED, TensorSpec(QType("uint8", 0, 15), symmetric=False)])
def test_a_clip_that_is_not_repeated_gets_a_tied_pair(spec: TensorSpec) -> None:
    found = resolved([Edge("y", spec, "r")], {"y": (0, 6)}, clip(0, 6))
    assert [(p.tensor, p.group, p.consumers) for p in found.placements] == [("y", "y", None), ("t", "y", None)]
    assert found.placements[0].qparams.same(found.placements[1].qparams)
    assert [r.message for r in found.remarks] == ["'t' is quantized before its activation, with the parameters of 'y'"]


def test_a_clip_inside_a_group() -> None:
    edges = [Edge("y", Shared("root"), "r"), Edge("root", SIGNED, "r")]
    found = resolved(edges, {"y": (0, 6), "root": (-7, 6)}, clip(0, 6))
    assert {(p.tensor, p.group) for p in found.placements} == {("y", "root"), ("root", "root"), ("t", "root")}


@pytest.mark.parametrize("high", [6, 1, 0.1, 3.3, 20, 1 / 3, 7e-5])
def test_the_scale_is_shaved_so_that_a_full_clip_is_repeated(high: float) -> None:
    bound = float(np.float32(high))
    found = resolved([Edge("y", ACT, "r")], {"y": (0, high)}, clip(0, bound))
    assert [p.tensor for p in found.placements] == ["y"]
    scale = qparams(found, "y").scale
    assert np.float32(255) * scale <= bound
    assert float(scale) == pytest.approx(high / 255, rel=1e-6)


def test_shaving_keeps_a_group_together() -> None:
    high = float(np.float32(3.9935646))
    plain = qparams(resolved([Edge("y", ACT, "r")], {"y": (0, high)}), "y")
    assert np.float32(255) * plain.scale > high  # one of few numbers that rounding moves beyond
    edges = [Edge("y", ACT, "r"), Edge("b", Shared("y"), "r"), Edge("c", Shared("y"), "r", (("n", 0),))]
    found = resolved(edges, {"y": (0, high), "b": (0, high / 2), "c": (0, high)}, clip(0, high))
    assert len({p.qparams.scale.tobytes() for p in found.placements}) == 1
    assert np.float32(255) * qparams(found, "y").scale <= np.float32(high)


def test_a_clip_whose_output_is_not_quantized() -> None:
    found = resolved([Edge("x", ACT, "r")], {"x": (0, 1)}, clip(0, 6))
    assert [p.tensor for p in found.placements] == ["x"]


# ------------------------------------------------------------------ weights and biases
def layer(spec: TensorSpec = WEIGHT, storage: str = "int32") -> list[Edge]:
    return [
        Edge("x", SIGNED, "r", (("n", 0),)),
        Edge("w", spec, "r", (("n", 1),)),
        Edge("b", Derived("x", "w", storage), "bias", (("n", 2),)),  # type: ignore[arg-type]
    ]


def test_a_bias_that_fits_changes_nothing() -> None:
    found = resolved(layer(), {"x": (-1, 1)})
    np.testing.assert_allclose(qparams(found, "w").scale, np.float32([1, 2, 4]) / 127.5, rtol=1e-2)
    assert [(b.node, b.storage, b.rule) for b in found.biases] == [("n", "int32", "bias")]
    assert found.remarks == ()


@pytest.mark.parametrize("spec", [WEIGHT, TensorSpec(I8, role="weight")])
@pytest.mark.parametrize("storage", ["int32", "float"])
def test_an_overflowing_bias_raises_its_weight_scale(spec: TensorSpec, storage: str) -> None:
    text = MODEL.replace("{1, 2, 3}", "{1, 2e9, 3}").replace("{1, 2, 4}", "{1, 0.001, 4}")
    plain = resolved(layer(spec, storage), {"x": (-1e-3, 1e-3)}, text=MODEL.replace("{1, 2, 4}", "{1, 0.001, 4}"))
    found = resolved(layer(spec, storage), {"x": (-1e-3, 1e-3)}, text=text)
    scale = np.broadcast_to(qparams(found, "w").scale, (3,))
    codes = np.float64([1, 2e9, 3]) / (np.float64(qparams(found, "x").scale) * scale)
    # The products of the layer need the other half: a sum that wraps around has the other sign. 128: float32 of the scale.
    assert 2**29 < codes.max() <= 2**30 + 128
    if spec.axis is not None:
        np.testing.assert_array_equal(scale[[0, 2]], qparams(plain, "w").scale[[0, 2]])
    assert [r.message for r in found.remarks] == ["weight scales were raised so that the bias fits int32: 'n'"]


def test_a_dead_channel_takes_the_middle_scale() -> None:
    found = resolved(layer(), {"x": (-1, 1)}, text=MODEL.replace("{1, 2, 4}", "{1, 0, 4}"))
    scale = qparams(found, "w").scale
    assert scale[1] == np.median(scale[[0, 2]])
    assert [r.message for r in found.remarks] == ["output channels that are all zero: 1 of 'w'"]


def test_what_holds_for_several_tensors_is_said_once() -> None:
    edges = [Edge("x", ACT, "r"), Edge("y", ACT, "r")]
    found = resolved(edges, {"x": (0, 0), "y": (0, 0)})
    assert [r.message for r in found.remarks] == ["always zero, so that the scale is 1: 'x', 'y'"]
    assert found.remarks[0].nodes == ("x", "y")


def test_a_dead_weight() -> None:
    found = resolved(layer(), {"x": (-1, 1)}, text=MODEL.replace("{1, 2, 4}", "{0, 0, 0}"))
    assert qparams(found, "w").scale.tolist() == [1, 1, 1]


# ------------------------------------------------------------------ saturated consumers
def test_no_codes_for_what_consumers_cannot_tell_apart() -> None:
    ranges = (SaturatingRange("a", -8.0, math.inf), SaturatingRange("b", -8.0, 8.0))
    edges = (Edge("a", ACT, "r"), Edge("b", ACT, "r"))
    plan = QuantPlan("test", edges, useful_ranges=ranges)
    observers = {"a": seen(ACT, -96, 19), "b": seen(ACT, -1, 2)}
    found = resolve(plan, observers, ir.from_proto(proto(MODEL)))
    assert float(qparams(found, "a").scale) == pytest.approx(27 / 255)
    assert float(qparams(found, "b").scale) == pytest.approx(3 / 255)


def test_a_group_keeps_its_range() -> None:
    plan = QuantPlan("test", tuple(GROUP), useful_ranges=(SaturatingRange("a", -8.0, 8.0),))
    observers = {t: seen(ACT, -96, 19) for t in "abcd"}
    found = resolve(plan, observers, ir.from_proto(proto(MODEL)))
    assert float(qparams(found, "a").scale) == pytest.approx(115 / 255)


def test_a_constant_that_is_a_weight_and_an_activation() -> None:
    """A tied embedding: the weight of a MatMul, and the data of a Gather in tables that have a row for it."""
    edges = [Edge("w", WEIGHT, "r", (("n", 1),)), Edge("w", ACT, "r", (("g", 0),))]
    assert tensors_to_observe(QuantPlan("test", tuple(edges), ())) == {"w": ACT}
    found = resolved(edges, {"w": (-1, 4)})
    assert [p.qparams.qtype for p in found.placements] == [I8, U8]


@pytest.mark.parametrize("source", ["Constant <value = float[2] {1, 2}> ()", "RandomNormal <shape = [2]> ()"])
def test_nodes_without_inputs_stand_beside_a_layer_with_a_bias(source: str) -> None:
    text = MODEL.replace("y)", "y, float[2] k)").replace("y = Relu(t)", f"y = Relu(t) k = {source}")
    assert [b.node for b in resolved(layer(), {"x": (-1, 1)}, text=text).biases] == ["n"]
