"""Nodes that are not in order: sorted where onnxruntime sorts them, else refused by name."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser

from onnxqat.errors import ModelError
from onnxqat.graph import io, order

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
CHAIN = """<ir_version: 9, opset_import: ["": 18]> g (float[2, 3] x, bool c) => (float[2, 3] y) {
    a = Neg(x)  b = Add(a, x)  d = If(c) <then_branch = t () => (float[2, 3] p) { q = Exp(a) p = Mul(q, b) },
    else_branch = e () => (float[2, 3] r) { r = Identity(a) }>  y = Add(d, b)
}"""


def shuffled(*places: int) -> onnx.ModelProto:
    model = parser.parse_model(CHAIN)
    nodes = [onnx.NodeProto.FromString(model.graph.node[i].SerializeToString()) for i in places]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("places", [(3, 2, 1, 0), (2, 0, 1, 3), (0, 2, 3, 1)])
def test_a_main_graph_is_sorted_as_onnxruntime_sorts_it(places, tmp_path: Path) -> None:
    model = shuffled(*places)
    before = model.SerializeToString()
    wanted = operators(io.load(parser.parse_model(CHAIN)))
    assert operators(io.load(model)) == wanted  # If reads `a` and `b` in its bodies only
    assert model.SerializeToString() == before
    onnx.save(model, tmp_path / "m.onnx")
    assert operators(io.load(tmp_path / "m.onnx")) == wanted
    given = {"x": X, "c": np.array(True)}
    runs = [
        onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, given)[0]
        for m in (model, io.to_proto(io.load(model)))
    ]
    np.testing.assert_array_equal(*runs)


def test_nodes_stay_where_they_may() -> None:
    model = parser.parse_model(CHAIN)
    assert order.early_read(model.graph.node) is None
    assert order.sort(model.graph.node) == list(model.graph.node)


def test_a_body_out_of_order_is_refused_by_name() -> None:
    model = parser.parse_model(CHAIN)
    body = model.graph.node[2].attribute[0].g
    body.node.extend(reversed([onnx.NodeProto.FromString(n.SerializeToString()) for n in body.node]))
    del body.node[:2]
    body.node[0].name = "product"
    with pytest.raises(ModelError, match=r"node 'product' \(Mul\) reads 'q'.*graph.sort") as error:
        io.load(model)
    assert error.value.code == "model-invalid"
    with pytest.raises(Exception, match="topologically sorted"):
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_a_cycle_is_refused() -> None:
    nodes = [helper.make_node("Neg", ["b"], ["a"], name="one"), helper.make_node("Neg", ["a"], ["b"])]
    output = helper.make_tensor_value_info("b", TensorProto.FLOAT, [1])
    graph = helper.make_graph(nodes, "g", [], [output])
    with pytest.raises(ModelError, match="cycle; node 'one'"):
        io.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9))


def test_a_model_in_memory_is_left_to_its_owner() -> None:
    model = ir.from_proto(shuffled(3, 2, 1, 0))
    with pytest.raises(ModelError, match=r"out of order.*model.graph.sort"):
        io.load(model)
    model.graph.sort()
    assert operators(io.load(model)) == operators(io.load(parser.parse_model(CHAIN)))
