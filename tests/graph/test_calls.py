"""Functions that call functions do not make more nodes than any memory holds."""

import onnx
import pytest
from onnx import helper

from onnxqat.errors import ModelError
from onnxqat.graph import calls


def doubling(levels: int) -> onnx.ModelProto:
    """Each of the functions calls the next twice; the last holds one node."""
    ends = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    functions = [
        helper.make_function("local", f"f{levels}", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], ends)
    ]
    for level in range(levels):
        twice = [
            helper.make_node(f"f{level + 1}", [read], [made], domain="local") for read, made in (("a", "c"), ("c", "b"))
        ]
        functions.append(helper.make_function("local", f"f{level}", ["a"], ["b"], twice, ends))
    call = helper.make_node("f0", ["x"], ["y"], domain="local")
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([call], "g", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=ends, functions=functions)


def test_few_calls_of_many_nodes() -> None:
    calls.check(doubling(16), "m.onnx")
    with pytest.raises(ModelError, match=r"m.onnx: .* 1.31e\+05 nodes") as caught:
        calls.check(doubling(17), "m.onnx")
    assert caught.value.code == "model-invalid"


def test_a_large_model_that_calls_little() -> None:
    model = doubling(1)
    model.graph.node.extend([model.graph.node[0]] * 70_000)
    calls.check(model, "m.onnx")


def test_a_call_with_more_inputs_than_its_function() -> None:
    model = doubling(1)
    model.functions[1].node[0].input.append("a")
    with pytest.raises(ModelError, match="'f1' with 2 inputs") as caught:
        calls.check(model, "m.onnx")
    assert caught.value.code == "model-invalid"
