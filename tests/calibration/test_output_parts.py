"""Boxes and scores in one output are parts of their own, also over several scales, and each has its share of noise."""

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

import onnxqat
from onnxqat.calibration.output_parts import Parts, Shares
from onnxqat.graph import io, qdq

HEAD = """<ir_version: 8, opset_import: ["": 17]>
g (float[N, 4, 4, 4] fine, float[N, 4, 2, 2] coarse) => (float[N, A, 7] y) <int64[3] flat = {0, 7, -1}> {
b0 = Conv(fine, box) p0 = Conv(fine, object) s0 = Sigmoid(p0) l0 = Conv(fine, class) c0 = Sigmoid(l0)
b1 = Conv(coarse, box) p1 = Conv(coarse, object) s1 = Sigmoid(p1) l1 = Conv(coarse, class) c1 = Sigmoid(l1)
a0 = Concat<axis = 1>(b0, s0, c0) f0 = Reshape(a0, flat)
a1 = Concat<axis = 1>(b1, s1, c1) f1 = Reshape(a1, flat)
f = Concat<axis = 2>(f0, f1) y = Transpose<perm = [0, 2, 1]>(f) }"""


def parsed(text: str, **weights: np.ndarray) -> ir.Model:
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(w.astype(np.float32), n) for n, w in weights.items())
    return io.load(onnx.shape_inference.infer_shapes(model))


def head() -> ir.Model:
    random = np.random.default_rng(0)
    return parsed(
        HEAD, **{n: random.standard_normal((m, 4, 1, 1)) for n, m in (("box", 4), ("object", 1), ("class", 2))}
    )


def feeds(count: int = 2) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {n: random.standard_normal((count, 4, s, s)).astype(np.float32) for n, s in (("fine", 4), ("coarse", 2))}


def test_the_scales_of_a_head_are_one_part_each_for_boxes_objects_and_classes() -> None:
    parts = Parts(head())
    assert parts.count == {"y": 3}
    labels = parts.labels(feeds())["y"]
    assert labels.shape == (2, 20, 7)
    assert (labels == [0, 0, 0, 0, 1, 2, 2]).all()


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        ("y = Relu(x)", 1),
        ("t = Relu(x) s = Neg(x) u = Relu(s) y = Concat<axis = 1>(t, u)", 1),
        ("t = Relu(x) y = Concat<axis = 1>(t, x)", 2),
        ("t = Relu(x) s = Concat<axis = 1>(t, x) y = Concat<axis = 1>(s, t)", 2),
        ("t = Relu(x) s = Concat<axis = 1>(t, x) y = Concat<axis = 1>(s, s)", 2),
        ("t = Relu(x) s = Concat<axis = 1>(t, x) y = Relu(s)", 1),
    ],
)
def test_what_is_a_part(body: str, parts: int) -> None:
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => (float[N, M] y) {{ {body} }}'
    found = Parts(parsed(text))
    assert found.count == {"y": parts}
    labels = found.labels({"x": np.ones((3, 4), np.float32)})
    assert {len(np.unique(array)) for array in labels.values()} == ({parts} if parts > 1 else set())


@pytest.mark.parametrize("alike", [False, True])
def test_a_wide_output_counts_as_a_whole(alike: bool) -> None:
    """Of a thousand tensors, alike or not, none is a part of a head."""
    names = [f"t{number}" for number in range(1000)]
    made = " ".join(f"{name} = {'Relu' if alike or number % 2 else 'Neg'}(x)" for number, name in enumerate(names))
    joins = f"s = Concat<axis = 1>({', '.join(names)}) y = Concat<axis = 1>(s, x)"
    model = parsed(f'<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => (float[N, M] y) {{ {made} {joins} }}')
    parts = Parts(model)
    assert parts.count == {"y": 1}
    assert parts.labels({"x": np.ones((1, 4), np.float32)}) == {}


def test_each_part_is_held_against_its_own_signal() -> None:
    """Zeros in place of one column of small scores are as much noise as zeros in place of all boxes."""
    shares = Shares(head())
    labels = Parts(head()).labels(feeds())["y"]
    wanted = np.where(labels == 0, 1000, 0.001)
    shares.expect(feeds(), {"y": wanted})
    assert shares.count == 3
    for number in range(3):
        assert shares.of([{"y": np.where(labels == number, 0, wanted)}]) == pytest.approx(1)
    assert shares.of([{"y": wanted}]) == 0
    assert shares.of([{"y": wanted[:1]}]) == 3


def test_ranges_of_small_scores_are_chosen_beside_large_boxes() -> None:
    """Outliers that nothing comes of are cut in the branch of the scores, however much noise the boxes have."""
    random = np.random.default_rng(1)
    weight = random.standard_normal((8, 8, 1, 1))
    weight[:, 0] = 0
    model = parsed(
        """<ir_version: 8, opset_import: ["": 17]> g (float[N, 8, 6, 6] x, float[N, 8, 6, 6] z) => (float[N, 16, 6, 6] y) {
        t = Relu(x) u = Conv(t, w) s = Sigmoid(u) b = Conv(z, v) y = Concat<axis = 1>(b, s) }""",
        w=weight,
        v=random.standard_normal((8, 8, 1, 1)),
    )
    x = random.standard_normal((24, 8, 6, 6)).astype(np.float32)
    x[::8, 0, 0, 0] = 60
    data = {"x": x, "z": (1000 * random.standard_normal(x.shape)).astype(np.float32)}
    result = onnxqat.insert_qdq(model, data=data, guard=False)
    found = {q.tensor: q.qparams for q in qdq.quantizers(io.load(result.model))}["t"]
    assert float(found.scale * (found.qtype.quant_max - found.zero_point)) < 10


def test_noise_of_one_sample_counts_for_more_than_as_much_in_all() -> None:
    """Others may have such samples too; where all are alike, or there is one batch, nothing is added."""
    model = parsed('<ir_version: 8, opset_import: ["": 17]> g (float[N, 4] x) => (float[N, 4] y) { y = Neg(x) }')
    wanted = {"y": np.ones((1, 4))}
    shares = Shares(model)
    for _ in range(4):
        shares.expect({"x": -wanted["y"]}, wanted)
    alike, single = [0.1] * 4, [0.2, 0.0, 0.0, 0.0]
    spread, rare = ([{"y": 1 + np.full((1, 4), noise)} for noise in found] for found in (alike, single))
    assert shares.of(spread) == pytest.approx(shares.of(rare)) == pytest.approx(0.01)
    assert shares.at_most(spread) == pytest.approx(0.01)
    assert shares.at_most(rare) == pytest.approx(0.01 + 2 * 0.01)  # one value of four: its standard error is their mean
    assert shares.at_most(rare[:1]) == pytest.approx(0.04)
