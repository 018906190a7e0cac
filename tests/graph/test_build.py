"""New values have type, shape and a fresh name."""

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, io
from tests.passes.checks import in_function, in_if, parse

TEXT = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { [n] t = Mul(x, w) [w_1] y = Relu(t) }"


def test_names_are_fresh_against_every_scope() -> None:
    names = build.Names(io.load(in_if(parse(TEXT))))
    assert names.fresh("x") == "x_1"
    assert names.fresh("then_w") == "then_w_1"
    assert names.fresh("new") == "new"
    assert names.fresh("new") == "new_1"


def test_names_of_nodes_are_taken_too() -> None:
    names = build.Names(io.load(parse(TEXT)))
    assert names.fresh("w") == "w_2"
    assert names.fresh("n") == "n_1"


def test_constant_of_a_graph_is_an_initializer() -> None:
    model = io.load(parse(TEXT))
    value = build.constant(model.graph, "c", np.asarray([1, -2]), ir.DataType.INT4)
    assert value.is_initializer()
    assert (value.dtype, value.shape) == (ir.DataType.INT4, [2])
    assert value.const_value.numpy().dtype == ml_dtypes.int4


def test_constant_of_a_function_is_a_node() -> None:
    function = next(iter(io.load(in_function(parse(TEXT))).functions.values()))
    first = build.constant(function, "c", np.float32(1))
    assert function[0] is first.producer()
    relu = function[-1]
    second = build.constant(function, "d", np.float32(1), before=relu)
    assert function[-2] is second.producer()


def test_scalars_stay_scalars() -> None:
    assert build.tensor(np.asarray(3.0, np.float32)).shape == []


def test_outputs_do_not_share_a_shape() -> None:
    model = io.load(parse(TEXT))
    source = model.graph.inputs[0]
    node = build.node(
        "Split", [source], ["a", "b"], {"axis": 0}, dtype=ir.DataType.FLOAT, shape=source.shape, stamp={"k": "v"}
    )
    assert node.outputs[0].shape is not node.outputs[1].shape
    assert node.outputs[0].shape == source.shape
    assert node.metadata_props == {"k": "v"}
