"""Shape inference of models whose stated shapes would end the process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

import onnxqat
from onnxqat.graph import inference, io


def sliced(rows: int) -> onnx.ModelProto:
    """A Slice of the second axis, which has so many rows."""
    constants = {"start": [0], "end": [2], "axis": [1]}
    graph = helper.make_graph(
        [helper.make_node("Slice", ["x", "start", "end", "axis"], ["y"], name="slice")],
        "negative",
        [helper.make_tensor_value_info("x", 1, [1, rows, 6])],
        [helper.make_tensor_value_info("y", 1, None)],
        [onnx.numpy_helper.from_array(np.asarray(value, np.int64), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_negative_dimension_is_an_unknown_one(tmp_path: Path, in_memory: bool) -> None:
    onnx.save(sliced(-1), tmp_path / "m.onnx")
    source = ir.from_proto(sliced(-1)) if in_memory else tmp_path / "m.onnx"
    assert len(onnxqat.inspect(source).inputs) == 1
    assert onnxqat.lint(source).findings is not None
    # What the file states of its inputs stays.
    shape = io.load(source).graph.inputs[0].shape
    assert shape is not None
    assert tuple(shape) == (1, -1, 6)


def test_inference_sees_through_branches_and_kinds() -> None:
    inner = sliced(-1).graph
    sequence = helper.make_value_info("s", helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [-2])))
    inner.value_info.append(sequence)
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=sliced(-3).graph)],
        "outer",
        [helper.make_tensor_value_info("c", 9, [])],
        [helper.make_tensor_value_info("z", 1, None)],
    )
    model = helper.make_model(graph)
    before = model.SerializeToString()
    assert [d.dim_value for d in inference._dimensions(model)].count(-1) == 1
    found = inference.infer_shapes(model)
    assert all(d.dim_value >= 0 for d in inference._dimensions(found))
    assert model.SerializeToString() == before
    assert inference.infer_shapes(sliced(4)).graph.output[0].type.tensor_type.shape.dim[1].dim_value == 2


@pytest.mark.parametrize("operator", ["GroupNormalization <num_groups = 2> (r, a, a)", "MeanVarianceNormalization (r)"])
def test_types_behind_operators_that_onnx_does_not_infer(operator: str) -> None:
    """In the main graph and in a branch; the nodes stay what they are."""
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[N,4,6,6] x, bool c) => (y) <float[4] a> {{
            r = Relu (x)
            n = {operator}
            t = Transpose <perm = [0, 2, 3, 1]> (n)
            y = If (c) <then_branch = f () => (u) {{ m = {operator} u = Identity (m) }},
                        else_branch = g () => (v) {{ v = Identity (n) }}> }}""")
    found = inference.infer_shapes(model)
    assert [node.op_type for node in found.graph.node] == [node.op_type for node in model.graph.node]
    assert found.graph.node[1] == model.graph.node[1]
    sizes = {v.name: [d.dim_value or d.dim_param for d in v.type.tensor_type.shape.dim] for v in found.graph.value_info}
    assert sizes["n"] == ["N", 4, 6, 6]
    assert sizes["t"] == ["N", 6, 6, 4]
    (result,) = found.graph.output
    assert [d.dim_value or d.dim_param for d in result.type.tensor_type.shape.dim] == ["N", 4, 6, 6]
    branch = found.graph.node[3].attribute[0].g.node[0]
    assert branch == model.graph.node[3].attribute[0].g.node[0]
