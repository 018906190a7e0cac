"""Files that insert_qdq wrote have no finding but notes."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxqat
from onnxqat.placement.table_overrides import Overrides

RANDOM = np.random.default_rng(0)
X = {"x": RANDOM.standard_normal((16, 4, 8)).astype(np.float32)}
IDS = {"x": RANDOM.integers(0, 9, (16, 4))}
WIDE = Overrides(node_bits=(("a", 8, 16), ("y", 8, 16)))


def findings(nodes: list[Any], data: dict[str, Any], overrides: Overrides, **constants: Any) -> list[Any]:
    """Findings in the file for qnn-htp of nodes from ``x`` to ``y``."""
    kind = TensorProto.INT64 if data["x"].dtype == np.int64 else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, ["B", *data["x"].shape[1:]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", 4, 8])],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    made = onnxqat.insert_qdq(model, "qnn-htp", data=data, overrides=overrides, guard=False).model
    del made.metadata_props[:]  # the record of the widths, which the guard does not write
    return [f for f in onnxqat.lint(made, "qnn-htp").findings if f.severity != "note"]


@pytest.mark.parametrize("divisor", ["initializer", "Constant"])
def test_a_constant_operand_is_as_wide_as_the_activation_beside_it(divisor: str) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], "a"), helper.make_node("Div", ["a", "d"], ["y"], "y")]
    constants = {"w": RANDOM.standard_normal((8, 8)), "d": 4.0}
    if divisor == "Constant":
        made = numpy_helper.from_array(np.float32(constants.pop("d")), "d")
        nodes.insert(0, helper.make_node("Constant", [], ["d"], "d", value=made))
    assert findings(nodes, X, WIDE, **constants) == []


def test_rows_of_a_table_have_its_scale() -> None:
    nodes = [helper.make_node("Gather", ["table", "x"], ["a"], "a"), helper.make_node("MatMul", ["a", "w"], ["y"], "y")]
    found = findings(nodes, IDS, Overrides(), table=RANDOM.standard_normal((9, 8)), w=RANDOM.standard_normal((8, 8)))
    assert found == []
