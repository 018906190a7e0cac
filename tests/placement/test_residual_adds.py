"""What a compiler adds to another tensor before it rounds carries no pair of its own."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxqat
from onnxqat.deployment.handoff import handoff
from onnxqat.placement.table_overrides import Overrides
from tests.backends.planning import edges, plan, proto, table_file, weight

W = f"float[4,4,1,1] w = {weight(4, 4, 1, 1)}, float[4,4,3,3] k = {weight(4, 4, 3, 3)}"
BLOCKS = f"""g (float[1,4,6,6] x) => (float[1,4,6,6] y) <{W}> {{
    a = Conv(x, w)
    b = Conv<pads = [1,1,1,1]>(a, k) s = Add(a, b) r = Relu(s)
    c = Conv<pads = [1,1,1,1]>(r, k) d = Conv(r, w) t = Add(c, d) y = Conv(t, w) }}"""


def bare(text: str, backend: str = "openvino-cpu") -> set[str]:
    """Results of convolutions that the plan gives no pair."""
    made = {node.output[0] for node in proto(text).graph.node if node.op_type == "Conv"}
    return made - set(edges(plan(text, backend)))


def test_one_operand_of_a_sum_is_bare(tmp_path: Path) -> None:
    """The convolution that a sum alone reads; the first of two, and the other keeps its pair."""
    assert bare(BLOCKS) == {"b", "c"}
    assert bare(BLOCKS, "onnxruntime-cpu") == set()
    assert bare(BLOCKS, table_file(tmp_path, "backend: t\nextends: openvino-cpu\nfused_residual_add: []\n")) == set()


def test_who_reads_the_shape_does_not_count() -> None:
    """Pyramids of detectors resize to the shape of a lateral convolution; a compiler folds that away."""
    text = f"""g (float[1,4,6,6] x) => (float[1,4,6,6] y) <{W}> {{
        b = Conv<pads = [1,1,1,1]>(x, k) h = Shape(b) e = Reshape(x, h) s = Add(b, e) y = Conv(s, w) }}"""
    assert bare(text) == {"b"}


@pytest.mark.parametrize(
    "body",
    [
        "b = Conv<pads = [1,1,1,1]>(x, k) s = Add(x, b) p = MaxPool<kernel_shape = [1,1]>(b) y = Add(s, p)",
        "b = Conv<pads = [1,1,1,1]>(x, k) p = MaxPool<kernel_shape = [6,6]>(x) y = Add(b, p)",
        "b = Conv<pads = [1,1,1,1]>(x, k) r = Relu(b) y = Add(x, r)",
        "b = Conv<pads = [1,1,1,1]>(x, k) y = Sub(x, b)",
        "b = Conv<pads = [1,1,1,1]>(x, k) y = Add(b, b)",
        "y = Conv<pads = [1,1,1,1]>(x, k) z = Add(x, y)",
    ],
    ids=["read twice", "broadcast", "behind an activation", "no sum", "twice the same", "a result of the model"],
)
def test_other_results_keep_their_pairs(body: str) -> None:
    outputs = "float[1,4,6,6] y" + (", float[1,4,6,6] z" if "z =" in body else "")
    found = edges(plan(f"g (float[1,4,6,6] x) => ({outputs}) <{W}> {{ {body} }}", "openvino-cpu"))
    assert {"r" if "r =" in body else "b" if "b =" in body else "y"} <= set(found)


def residual_network(blocks: int) -> onnx.ModelProto:
    """Residual blocks with random weights, one behind the other."""
    random = np.random.default_rng(0)
    channels = 8
    names = [f"w{i}" for i in range(2 * blocks)]
    weights = [(0.15 * random.standard_normal((channels, channels, 3, 3))).astype(np.float32) for _ in names]
    body, last = "", "x"
    for i in range(blocks):
        body += f"""a{i} = Conv<pads = [1,1,1,1]>({last}, w{2 * i}) r{i} = Relu(a{i})
            b{i} = Conv<pads = [1,1,1,1]>(r{i}, w{2 * i + 1}) s{i} = Add(b{i}, {last}) q{i} = Relu(s{i})\n"""
        last = f"q{i}"
    text = f"g (float[1,{channels},12,12] x) => (float[1,{channels},12,12] y) {{ {body} y = MaxPool<kernel_shape = [1,1]>({last}) }}"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')
    model.graph.initializer.extend(map(onnx.numpy_helper.from_array, weights, names))
    return model


def test_openvino_computes_the_file(tmp_path: Path) -> None:
    """A deep residual network gives the very bits of the file; with a pair between, it ends several steps away."""
    pytest.importorskip("openvino")
    x = np.random.default_rng(1).standard_normal((4, 8, 12, 12)).astype(np.float32)
    model = residual_network(4)
    largest = {}
    for rows, text in (("bare", ""), ("pairs", "fused_residual_add: []\n")):
        table = table_file(tmp_path, f"backend: t\nextends: openvino-cpu\nroute: openvino-cpu\n{text}")
        table = str(Path(table).rename(tmp_path / f"{rows}.yaml"))
        overrides = Overrides(exact=True)  # with free scales single values lie next to a tie
        made = onnxqat.insert_qdq(model, table, data={"x": x}, overrides=overrides).model
        report = handoff(made, table, tmp_path / rows, data={"x": x}, limit=4, trace=False)
        largest[rows] = max(check.largest_steps for check in report.outputs)
    assert largest["bare"] == 0
    assert largest["pairs"] > 0
