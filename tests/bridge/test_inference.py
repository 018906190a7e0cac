"""Ranks that onnx's shape inference leaves open."""

import numpy as np
import onnx_ir as ir
import pytest
import torch
from onnx import helper, numpy_helper, parser

from onnxqat.bridge.importing import inference
from onnxqat.bridge.importing.importer import to_torch
from tests.bridge import parity

RESHAPES = """
<ir_version: 8, opset_import: ["": 17]>
g (float[n, c, m] x, int64[2] sizes) => (float[a, b] y)
<int64[1] zero = {0}, int64[1] one = {1}, int64[1] rest = {-1}>
{
  flat = Reshape(x, sizes)
  s = Sigmoid(flat)
  shape = Shape(s)
  rows = Slice(shape, zero, one)
  back = Concat<axis = 0>(rows, rest)
  y = Reshape(s, back)
}
"""


def test_a_shape_behind_a_reshape_of_unknown_sizes_is_numbers() -> None:
    model = parser.parse_model(RESHAPES)
    module = to_torch(model)
    assert "shape_as_tensor" not in module.code
    random = parity.feeds(parity.session(model), {"batch": 2})
    random["sizes"][:] = [4, -1]
    parity.check(model, random)


@pytest.mark.parametrize(("node", "rank"), [("Expand(x, sizes)", 3), ("Reshape(x, sizes)", 2)])
def test_ranks(node, rank) -> None:
    from onnxqat.bridge.importing import inference

    text = RESHAPES.split("{\n  flat")[0] + "{\n  z = " + node + "\n y = Neg(z)\n}"
    model = ir.from_proto(parser.parse_model(text))
    model.graph.outputs[0].shape = None
    shape = inference.infer(model).graph.outputs[0].shape
    assert shape is not None
    assert shape.rank() == rank


def test_a_node_that_onnx_does_not_understand_is_no_traceback_on_the_terminal(caplog) -> None:
    node = helper.make_node("TopK", ["x", "k"], ["y", ""])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", 1, ["n", 4])],
        [helper.make_tensor_value_info("y", 1, ["n", 2])],
        [numpy_helper.from_array(np.array([2]), "k")],
    )
    module = to_torch(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    assert module(torch.tensor([[1.0, 4.0, 3.0, 2.0]])).tolist() == [[4.0, 3.0]]
    assert not [record for record in caplog.records if record.name.startswith("onnx_ir")]


def test_a_vector_that_nobody_can_write_out() -> None:
    doubled = " ".join(f"k{i + 1} = Concat <axis = 0> (k{i}, k{i})" for i in range(45))
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) <int64[1] k0 = {{3}}> {{
        {doubled} y = Relu(x) }}"""
    inferred = inference.infer(ir.serde.deserialize_model(parser.parse_model(text)))
    assert inferred.graph.outputs[0].shape == ir.Shape([2])
