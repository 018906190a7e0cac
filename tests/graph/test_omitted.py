"""Optional inputs that are left out at the end are gone once a model is loaded, in every scope."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from onnxqat.graph import io, walk
from onnxqat.runtime.session import Session
from tests.passes.checks import in_function, in_if, parse

NORM = """g (float[1,4] x) => (float[1,4] y) <float[4] s = {1, 1, 1, 1}, float lo = {-1}> {
    n = LayerNormalization(x, s) y = Clip(n, lo) }"""


def with_empty_inputs() -> onnx.ModelProto:
    model = parse(NORM)
    for node in model.graph.node:
        node.input.append("")
    return model


@pytest.mark.parametrize("wrap", [lambda model: model, in_if, in_function])
def test_trailing_empty_inputs(wrap: Callable[[onnx.ModelProto], onnx.ModelProto]) -> None:
    given = wrap(with_empty_inputs())
    before = given.SerializeToString()
    found = [node.inputs for node in walk.nodes(io.load(given)) if node.op_type in ("LayerNormalization", "Clip")]
    assert found
    assert all(None not in inputs for inputs in found)
    assert given.SerializeToString() == before


def test_inputs_in_front_of_a_given_one_stay() -> None:
    model = parse(NORM.replace("Clip(n, lo)", 'Clip(n, "", lo)'))
    clip = next(node for node in walk.nodes(io.load(model)) if node.op_type == "Clip")
    assert [value is None for value in clip.inputs] == [False, True, False]


def test_onnxruntime_runs_what_is_left() -> None:
    # With the empty name in place, onnxruntime 1.32 ends the process here.
    session = Session(io.load(with_empty_inputs()), optimize=False)
    assert session.run({"x": np.ones((1, 4), np.float32)})["y"].tolist() == [[0.0] * 4]
