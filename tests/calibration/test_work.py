"""Expected time of a run: products of a layer, and trials that stop when it is used up."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import onnxqat
from onnxqat.calibration import output_error, work
from onnxqat.calibration.observers import create
from onnxqat.types import QType, TensorSpec

SPEC = TensorSpec(QType.of(8, signed=False), symmetric=False, observer="minmax")


@pytest.mark.parametrize(
    ("node", "weight", "x", "products"),
    [
        ("Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w)", (8, 4, 3, 3), (1, 4, 6, 6), 8 * 9 * 4 * 9),
        ("Conv <group = 4, pads = [1, 1, 1, 1]> (x, w)", (4, 1, 3, 3), (1, 4, 6, 6), 4 * 36 * 9),
        ("ConvTranspose <strides = [2, 2]> (x, w)", (4, 8, 2, 2), (1, 4, 6, 6), 4 * 36 * 8 * 4),
        ("Gemm (x, w)", (5, 7), (1, 5), 35),
        ("Gemm <transB = 1> (x, w)", (7, 5), (1, 5), 35),
        ("MatMul (x, w)", (5, 7), (1, 3, 5), 3 * 35),
        ("Add (x, w)", (5, 7), (1, 5), 0),
    ],
)
def test_products_of_layers(node: str, weight: tuple[int, ...], x: tuple[int, ...], products: int) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[{",".join(map(str, x))}] x) => (float y) {{ y = {node} }}'
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(weight, np.float32), "w"))
    observer = create(SPEC)
    for _ in range(3):
        observer.update(np.ones(x, np.float32))
    found = work.of_sample(ir.from_proto(model), {"x": observer}, 3)
    assert found == pytest.approx(work.NODE + work.VALUE * np.prod(x) + work.PRODUCT * products)
    assert work.of_sample(ir.from_proto(model), {"x": observer}, 0) == work.NODE


def test_trials_stop_where_their_time_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    run = output_error.Network._run

    def counted(network: output_error.Network, *arguments: object) -> object:
        runs.append(len(network._feeds))
        return run(network, *arguments)

    monkeypatch.setattr(output_error.Network, "_run", counted)
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 4] x) => (float[N, 4] y) { a = MatMul(x, w) b = Relu(a) c = MatMul(b, w) d = Relu(c) y = MatMul(d, w) }""")
    random = np.random.default_rng(0)
    weight = random.standard_normal((4, 4)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    data = {"x": random.standard_normal((32, 4)).astype(np.float32)}
    found = []
    for seconds in (output_error.MOST_SECONDS, 0.0):
        monkeypatch.setattr(output_error, "MOST_SECONDS", seconds)
        runs.clear()
        onnxqat.insert_qdq(model, data=data, guard=False, equalize="none", rounding="nearest")
        found.append(len(runs))
    monkeypatch.setattr(output_error, "SECONDS", 0.0)
    runs.clear()
    onnxqat.insert_qdq(model, data=data, guard=False, equalize="none", rounding="nearest")
    assert found[1] < found[0]
    assert max(runs) == 1
