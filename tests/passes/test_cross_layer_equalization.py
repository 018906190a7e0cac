"""cross-layer-equalization: the function is kept, and both sides of a tensor have channels of one size."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxqat.passes import _layer_channels as layers
from onnxqat.passes import _linked_layers as linked
from onnxqat.passes.cross_layer_equalization import CrossLayerEqualization
from tests.passes.checks import body, check_pass, in_function, in_if, operators, ort_run, parse, run_checked

WEIGHTS = "float[4,1,1,1] w = {100, 1, -0.5, 0.1}, float[4] b = {5, 0.5, 0, -0.1}"
FULL = "float[2,4,1,1] k = {0.01, 1, 2, 10, -0.02, 1, -2, -10}"
ROUNDING = 1e-3  # of values of some hundred: factors are no powers of two


def model(rest: str, weights: str = FULL, *, outputs: str = "float[N,2,3,3] z") -> str:
    """A convolution of one channel to four, and what follows."""
    return f"""g (float[N,1,3,3] v) => ({outputs}) <{WEIGHTS}, {weights}> {{ x = Conv(v, w, b) {rest} }}"""


def sides(proto: onnx.ModelProto, first: int = 0, second: int = -1) -> tuple[np.ndarray, np.ndarray]:
    """Largest weights of each channel in front and behind, of two of the layers."""
    found = [node for node in ir.from_proto(proto).graph if layers.is_layer(node)]
    return layers.magnitudes(found[first]).max(axis=2).ravel(), layers.magnitudes(found[second]).max(axis=1).ravel()


@pytest.mark.parametrize(
    ("rest", "weights", "outputs"),
    [
        ("y = Relu(x) z = Conv(y, k)", FULL, "float[N,2,3,3] z"),
        ("z = Conv(x, k)", FULL, "float[N,2,3,3] z"),
        ("y = LeakyRelu <alpha = 0.1> (x) z = Conv(y, k)", FULL, "float[N,2,3,3] z"),
        (
            "y = PRelu(x, s) z = Conv(y, k)",
            FULL + ", float[4,1,1] s = {0.1, 0.2, 0.3, 0.4}",
            "float[N,2,3,3] z",
        ),
        (
            "y = Relu(x) z = Conv <group = 2> (y, k)",
            "float[4,2,1,1] k = {0.01, 1, 2, 10, 0.02, 2, 1, 5}",
            "float[N,4,3,3] z",
        ),
        (
            "y = Relu(x) p = MaxPool <kernel_shape = [2, 2], pads = [1, 1, 0, 0]> (y) z = ConvTranspose <group = 2> (p, k)",
            "float[4,2,1,1] k = {0.01, 0.01, 2, 10, 0.02, 2, 1, 5}",
            "float[N,4,3,3] z",
        ),
        (
            "y = Relu(x) p = GlobalAveragePool(y) f = Flatten(p) z = Gemm <transB = 1> (f, k)",
            "float[2,4] k = {0.01, 1, 2, 10, -0.02, 1, -2, -10}",
            "float[N,2] z",
        ),
    ],
    ids=["relu", "none", "leaky relu", "prelu", "grouped", "pool, transposed", "global pool, gemm"],
)
def test_both_sides_get_one_size(rest: str, weights: str, outputs: str) -> None:
    result = run_checked(CrossLayerEqualization(), parse(model(rest, weights, outputs=outputs)), ROUNDING)
    assert result.changed
    front, behind = sides(result.model)
    np.testing.assert_allclose(front, behind, rtol=1e-5)


def test_factors_are_those_of_the_paper() -> None:
    """s = sqrt(r1 r2) / r2: both sides become the geometric mean of what they were."""
    before = parse(model("y = Relu(x) z = Conv(y, k)"))
    front, behind = sides(before)
    after = sides(run_checked(CrossLayerEqualization(), before, ROUNDING).model)[0]
    np.testing.assert_allclose(after, np.sqrt(front * behind), rtol=1e-5)


def test_three_layers_settle() -> None:
    """Conv, depthwise Conv, Conv: the cube root of all three."""
    weights = (
        "float[4,1,1,1] d = {3, 1, 0.1, 9}, float[4] e = {1, 2, 3, 4}, "
        "float[2,4,1,1] k = {0.01, 1, 2, 10, -0.02, 1, -2, -10}"
    )
    before = parse(model("y = Relu(x) m = Conv <group = 4> (y, d, e) r = Relu(m) z = Conv(r, k)", weights))
    result = run_checked(CrossLayerEqualization(), before, ROUNDING)
    wanted = np.cbrt(np.array([100, 1, 0.5, 0.1]) * np.array([3, 1, 0.1, 9]) * np.array([0.02, 1, 2, 10]))
    for side in (*sides(result.model, 0, 1), *sides(result.model, 1, 2)):
        np.testing.assert_allclose(side, wanted, rtol=2e-3)  # the rounds end there


def test_flattened_channels_are_several_columns() -> None:
    text = """g (float[N,1,1,2] v) => (float[N,1] z)
        <float[2,1,1,1] w = {100, 1}, float[4,1] k = {0.01, 0.02, 1, 3}, float[1] c = {1}> {
        x = Conv(v, w) y = Relu(x) f = Flatten(y) z = Gemm(f, k, c) }"""
    front, behind = sides(run_checked(CrossLayerEqualization(), parse(text), ROUNDING).model)
    np.testing.assert_allclose(front, behind.reshape(2, 2).max(axis=1), rtol=1e-5)


def test_products_with_a_bias_behind() -> None:
    text = """g (float[N,3,2] v) => (float[N,3,2] z)
        <float[2,2] w = {100, 1, 50, 0.5}, float[2] b = {3, 1}, float[2,2] k = {0.01, 0.02, 1, 3}> {
        p = MatMul(v, w) x = Add(b, p) y = Relu(x) z = MatMul(y, k) }"""
    front, behind = sides(run_checked(CrossLayerEqualization(), parse(text), ROUNDING).model)
    np.testing.assert_allclose(front, behind, rtol=1e-5)


def test_channels_without_weights_keep_theirs() -> None:
    weights = "float[2,4,1,1] k = {0.01, 1, 0, 10, -0.02, 1, 0, -10}"
    before = parse(model("y = Relu(x) z = Conv(y, k)", weights))
    front, behind = sides(run_checked(CrossLayerEqualization(), before, ROUNDING).model)
    assert (front[2], behind[2]) == (0.5, 0)


def test_what_is_switched_off_is_not_blown_up() -> None:
    """A weight of 1e-9 with a bias of 0.5, as a folded BatchNormalization leaves it, gets a factor of 1e-4 at most."""
    text = """g (float[N,1,3,3] v) => (float[N,1,3,3] z)
        <float[2,1,1,1] w = {1, 1e-9}, float[2] b = {0.5, 0.5}, float[1,2,1,1] k = {1, 1}> {
        x = Conv(v, w, b) y = Relu(x) z = Conv(y, k) }"""
    result = run_checked(CrossLayerEqualization(), parse(text), ROUNDING)
    bias = next(onnx.numpy_helper.to_array(i) for i in result.model.graph.initializer if i.name == "b")
    assert 100 < bias.max() < 6000


@pytest.mark.parametrize("op", ["Clip", "Min"])
def test_bounds_become_one_for_each_channel(op: str) -> None:
    clip = "y = Clip(x, zero, six)" if op == "Clip" else "y = Min(x, six)"
    weights = FULL + ", float zero = {0}, float six = {6}"
    text = model(f"{clip} z = Conv(y, k)", weights)
    left = CrossLayerEqualization().run(parse(text))
    assert not left.changed
    assert "one bound" in left.remarks[0].message
    result = run_checked(CrossLayerEqualization(bounds=True), parse(text), ROUNDING)
    assert operators(list(result.model.graph.node)) == ["Conv", *["Relu"] * (op == "Clip"), "Min", "Conv"]
    np.testing.assert_allclose(*sides(result.model), rtol=1e-5)


def test_a_bound_stays_where_channels_have_room() -> None:
    """The first channel is cut and keeps its size; the others grow until the bound, or less."""
    weights = FULL + ", float zero = {0}, float six = {6}"
    text = model("y = Clip(x, zero, six) z = Conv(y, k)", weights)
    room = np.array([1.0, 4.0, 2.0, 1.5])
    result = CrossLayerEqualization(rooms={"y": room}).run(parse(text))
    assert operators(list(result.model.graph.node)) == ["Conv", "Clip", "Conv"]
    grown = sides(result.model)[0] / sides(parse(text))[0]
    np.testing.assert_allclose(grown[0], 1)
    assert (grown <= room * 1.0001).all()
    np.testing.assert_allclose(grown[3], 1.5, rtol=1e-4)  # weights of 0.1 and 10 ask for a factor of ten
    values = np.random.default_rng(0).uniform(0, 1, (4, 1, 3, 3)).astype(np.float32)
    values *= 2.4  # b + w v of the second channel reaches 2.9, of the last 0.14: within their room
    before, after = (ort_run(m, {"v": values})["z"] for m in (parse(text), result.model))
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("low", "high", "expected"), [(0, 6, 2), (-1, 6, 1), (1, 6, 1), (0, 1, 1)])
def test_room_of_bounds(low: float, high: float, expected: float) -> None:
    """Channels from -1 to 3: the nearer bound counts, one that cuts leaves none, nor does one beyond zero."""
    weights = FULL + f", float low = {{{low}}}, float high = {{{high}}}"
    graph = ir.from_proto(parse(model("y = Clip(x, low, high) z = Conv(y, k)", weights))).graph
    link = next(found for found in linked.find(graph, bounded=True) if isinstance(found, linked.Link))
    ends = np.full(4, -1.0 if low < 0 else 0.0), np.full(4, 3.0)
    np.testing.assert_allclose(link.room(*ends), expected)


def test_bounds_stand_along_the_channels_of_the_convolution() -> None:
    """Behind a Flatten channels are columns; the Clip in front of it has planes."""
    weights = "float[4,2] k = {0.01, 1, 2, 10, -0.02, 1, -2, -10}, float zero = {0}, float six = {6}"
    rest = "y = Clip(x, zero, six) p = GlobalAveragePool(y) f = Flatten(p) z = Gemm(f, k)"
    before = parse(model(rest, weights, outputs="float[N,2] z"))
    run_checked(CrossLayerEqualization(bounds=True), onnx.shape_inference.infer_shapes(before), ROUNDING)


@pytest.mark.parametrize(
    ("rest", "outputs"),
    [
        ("y = Relu(x) z = Conv(y, k) t = Neg(y)", "float[N,2,3,3] z, float[N,4,3,3] t"),
        ("y = Relu(x) z = Conv(y, k)", "float[N,2,3,3] z, float[N,4,3,3] y"),
        ("y = Sigmoid(x) z = Conv(y, k)", "float[N,2,3,3] z"),
        ("y = Add(x, x) z = Conv(y, k)", "float[N,2,3,3] z"),
        ("y = Relu(x) z = Conv(y, k) t = Conv(y, k)", "float[N,2,3,3] z, float[N,2,3,3] t"),
        ("y = Softmax <axis = 1> (x) z = Conv(y, k)", "float[N,2,3,3] z"),
    ],
    ids=["read by another", "graph output", "sigmoid", "residual", "shared weight", "softmax"],
)
def test_left_alone(rest: str, outputs: str) -> None:
    check_pass(CrossLayerEqualization(), model(rest, outputs=outputs), None)


def test_two_readers_share_the_factors() -> None:
    rest = "y = Relu(x) z = Conv(y, k) t = Conv <group = 4> (y, d)"
    weights = FULL + ", float[4,1,1,1] d = {0.01, 1, 2, 20}"
    before = parse(model(rest, weights, outputs="float[N,2,3,3] z, float[N,4,3,3] t"))
    result = run_checked(CrossLayerEqualization(), before, ROUNDING)
    front, full = sides(result.model, 0, 1)
    np.testing.assert_allclose(front, np.maximum(full, sides(result.model, 0, 2)[1]), rtol=1e-5)


def test_scales_per_channel_equalize_the_tensor() -> None:
    """A depthwise weight follows any factor, so that the tensor's channels get one size; a full one pays its share."""
    sizes = np.float32([100, 1, 0.5, 0.1])
    ranges = {"y": sizes}
    depthwise = model(
        "y = Relu(x) z = Conv <group = 4> (y, d)", "float[4,1,1,1] d = {1, 1, 2, 1}", outputs="float[N,4,3,3] z"
    )
    step = CrossLayerEqualization(ranges=ranges, per_channel=["Conv"])
    result = run_checked(step, parse(depthwise), ROUNDING)
    was, now = (sides(m)[0] for m in (parse(depthwise), result.model))
    left = sizes * now / was
    np.testing.assert_allclose(left, left[0], rtol=1e-5)
    assert not CrossLayerEqualization(per_channel=["Conv"]).run(parse(depthwise)).changed
    full = parse(model("y = Relu(x) z = Conv(y, k)", "float[2,4,1,1] k = {1, 1, 1, 1, 2, 2, 2, 2}"))
    halves = sides(run_checked(step, full, ROUNDING).model)[1]
    np.testing.assert_allclose(halves / halves[0], np.sqrt(sizes / sizes[0]), rtol=1e-5)


def test_inside_bodies_too() -> None:
    before = parse(model("y = Relu(x) z = Conv(y, k)"))
    for wrapped in (in_function(before), in_if(before)):
        result = run_checked(CrossLayerEqualization(), wrapped, ROUNDING)
        assert result.changed
        assert operators(body(result.model)) == ["Conv", "Relu", "Conv"]


def test_a_tensor_whose_channels_are_all_dead_stays() -> None:
    """Neither its values nor the weights in front of it are anything but 0."""
    text = model("y = Relu(x) z = Conv(y, k)").replace("w = {100, 1, -0.5, 0.1}", "w = {0, 0, 0, 0}")
    pass_ = CrossLayerEqualization(ranges={"y": np.zeros(4)})
    assert not pass_.run(parse(text)).changed
