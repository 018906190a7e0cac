"""NaN and infinities inside of a network, without its tensors."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from onnxqat.graph import build
from onnxqat.runtime.watched_session import WatchedSession

MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 3] x, float16[2] h, double[2] d) => (bool[N, 3] y, bool[2] w, bool[2] z, float[M, 3] none)
{
    r = Sqrt (x)
    y = IsNaN (r)
    e = Sqrt (d)
    w = IsNaN (e)
    p = Identity (h)
    k = Cast <to = 1> (p)
    z = IsInf (k)
    first = Constant <value = int64[1] {0}> ()
    taken = Slice (x, first, first)
    none = Neg (taken)
}"""


def model() -> ir.Model:
    return ir.from_proto(onnx.shape_inference.infer_shapes(parser.parse_model(MODEL)))


@pytest.mark.parametrize(
    ("fed", "finite"),
    [({}, True), ({"x": -1}, False), ({"d": -1}, False), ({"h": np.inf}, False), ({"h": 60000}, True)],
)
def test_what_no_output_shows_is_noticed(fed: dict[str, float], finite: bool) -> None:
    """In every type, beside an empty tensor, and without a false alarm where float16 could not hold the sum."""
    feeds = {"x": np.ones((2, 3), np.float32), "h": np.ones(2, np.float16), "d": np.ones(2)}
    for name, value in fed.items():
        feeds[name][-1] = value
    session = WatchedSession(model(), "the model")
    found = session.run(feeds)
    assert session.finite is finite
    assert list(found) == ["y", "w", "z", "none"]
    session.run({"x": np.ones((2, 3), np.float32), "h": np.ones(2, np.float16), "d": np.ones(2)})
    assert session.finite is finite


def test_a_tensor_without_a_known_type_is_looked_at_too() -> None:
    untyped = model()
    value = next(v for node in untyped.graph for v in node.outputs if v.name == "r")
    value.type = None
    session = WatchedSession(untyped, "the model")
    session.run({"x": -np.ones((2, 3), np.float32), "h": np.ones(2, np.float16), "d": np.ones(2)})
    assert not session.finite


def test_names_of_the_model_stay_its_own() -> None:
    named = model()
    named.graph.append(build.node("Neg", [named.graph.inputs[0]], ["r_sum"], dtype=ir.DataType.FLOAT))
    feeds = {"x": np.full((1, 3), np.inf, np.float32), "h": np.ones(2, np.float16), "d": np.ones(2)}
    session = WatchedSession(named, "the model")
    session.run(feeds)
    assert not session.finite
    assert len(list(named.graph)) == 11
