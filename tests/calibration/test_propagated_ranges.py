"""Ranges of what was only moved follow from those of its sources."""

import dataclasses

import numpy as np
import onnx
import onnx_ir as ir

from onnxqat.calibration.observers import joined
from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.calibration.propagated_ranges import complete
from onnxqat.calibration.runner import calibrate
from onnxqat.types import QType, TensorSpec

SPEC = TensorSpec(QType.of(8, signed=False), symmetric=False)
TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,1,2,2] x, float[1,1,2,2] z) => (float[1,2,2,2] y) {
    a = Relu(x) b = Neg(z) c = Concat<axis = 1>(a, b) d = Transpose<perm = [0,1,3,2]>(c) y = Abs(d) e = Flatten(y) }"""


def observed() -> tuple[ir.Model, dict[str, BaseObserver]]:
    proto = onnx.parser.parse_model(TEXT)
    feeds = {"x": np.float32([[[[-1, 2], [3, 4]]]]), "z": np.float32([[[[5, 6], [7, -8]]]])}
    return ir.from_proto(proto), dict(calibrate(proto, {"a": SPEC, "b": SPEC}, [feeds]))


def test_a_concat_has_the_ranges_of_its_inputs_together() -> None:
    model, observers = observed()
    found = complete(observers, dict.fromkeys("abcd", SPEC), model)
    assert [float(v) for v in found["a"].range()] == [0.0, 4.0]
    for name in "cd":
        assert [float(v) for v in found[name].range()] == [-7.0, 8.0]
    assert found["a"] is observers["a"]


def test_what_is_computed_has_to_be_observed() -> None:
    model, observers = observed()
    assert set(complete(observers, {"y": SPEC, "e": SPEC}, model)) == {"a", "b"}


def test_an_operator_that_states_its_range_needs_no_data() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { p = Softmax(x) y = Identity(p) }'
    )
    found = complete({}, {"p": SPEC, "y": SPEC}, ir.from_proto(proto))
    assert [[float(v) for v in found[name].range()] for name in "py"] == [[0.0, 1.0]] * 2


def test_a_stated_range_beside_one_of_data() -> None:
    """Sin of a timestep beside features: what Sin can give has no values to compare ranges on."""
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N] x, float[N] z) => (float[M] y) { s = Sin(x) a = Relu(z) c = Concat<axis = 0>(a, s) y = Abs(c) }"""
    )
    auto = dataclasses.replace(SPEC, observer="auto")
    observers = dict(calibrate(proto, {"a": auto}, [{"x": np.zeros(2, np.float32), "z": np.float32([0, 3])}]))
    found = complete(observers, {"s": auto, "c": auto}, ir.from_proto(proto))
    assert [float(v) for v in found["c"].range()] == [-1.0, 3.0]
    assert [float(v) for v in joined(found["a"], [found["s"]]).range()] == [-1.0, 3.0]
    assert [float(v) for v in joined(found["s"], [found["a"]]).range()] == [-1.0, 3.0]
