"""store-batchnorm: what the graph computes becomes constants, bit for bit."""

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxqat.graph import io
from onnxqat.passes.compute_batchnorm import ComputeBatchnorm
from onnxqat.passes.store_batchnorm import StoreBatchnorm
from tests.passes.checks import constants, in_function, in_if, run_checked
from tests.test_insert_computed_batchnorm import CASES, IMAGES, LAYERS, kept


@pytest.mark.parametrize("case", CASES)
def test_no_bit_changes_and_a_second_run_is_idle(case: str) -> None:
    result = run_checked(StoreBatchnorm(), kept(case), atol=0.0)
    assert result.changed
    assert not {"Sqrt", "Reshape", "Round", "Sub", "Mul"} & {n.op_type for n in result.model.graph.node}


def test_inside_a_branch_and_a_function() -> None:
    model = kept("tidl", LAYERS, IMAGES)
    for wrapped in (in_if(model), in_function(model)):
        assert run_checked(StoreBatchnorm(), wrapped, atol=0.0).changed


def test_a_weight_that_others_read_stays_theirs() -> None:
    model = kept("tidl")
    model.graph.node.append(helper.make_node("ReduceSum", ["u"], ["sum"], keepdims=0))
    model.graph.output.append(helper.make_tensor_value_info("sum", onnx.TensorProto.FLOAT, []))
    result = run_checked(StoreBatchnorm(), model, atol=0.0)
    held = constants(result.model.graph)
    np.testing.assert_array_equal(held["u"], constants(model.graph)["u"])
    assert "u_folded_1" in held or "u_folded" in held


def test_values_that_are_not_finite_are_left() -> None:
    model = kept("tidl")
    entry = next(i for i in model.graph.initializer if i.name == "cv")
    entry.CopyFrom(onnx.numpy_helper.from_array(np.float32([1, -1, 1, 1]), "cv"))
    result = StoreBatchnorm().run(model)
    assert any("float32 cannot hold" in r.message and r.nodes == ("deep",) for r in result.remarks)


def test_nothing_is_taken_apart_without_a_note() -> None:
    folded = StoreBatchnorm().run(kept("tidl")).model
    assert not ComputeBatchnorm().run(folded).changed
    assert not ComputeBatchnorm().run(io.load(kept("tidl"))).changed
