"""Values that lie on a quantizer's grid because they were only moved."""

from itertools import count

import onnx
import onnx_ir as ir
import pytest

from onnxqat.graph import data_movement, qdq
from onnxqat.ops import operators as ops

HEADER = "g (float[1,2,4,4] x, float[1,2,4,4] z) => (float[1,N,P,Q] y)"
CONSTANTS = "<float s = {0.5}, uint8 p = {3}, float r = {0.25}>"
PAIRS = """a = QuantizeLinear(x, s, p) b = DequantizeLinear(a, s, p)
           c = QuantizeLinear(z, %s, p) d = DequantizeLinear(c, %s, p)"""


def grids(body: str, other: str = "s") -> dict[str, str]:
    """Tensor name of each value on a grid to the tensor whose quantizer it is."""
    text = f'<ir_version: 8, opset_import: ["": 17]> {HEADER} {CONSTANTS} {{ {PAIRS % (other, other)} {body} }}'
    model = ir.from_proto(onnx.parser.parse_model(text))
    found = data_movement.carried(qdq.quantizers(model))
    values = {id(v): str(v.name) for node in model.graph for v in node.outputs}
    return {values[key]: q.tensor for key, q in found.items()}


def test_through_a_chain_and_a_concat() -> None:
    body = "e = Concat<axis = 1>(b, d) f = MaxPool<kernel_shape = [2, 2]>(e) y = Transpose(f)"
    found = grids(body)
    assert set(found) == set("bdefy")
    assert (found["b"], found["d"]) == ("x", "z")
    assert len({found[name] for name in "efy"}) == 1


def test_a_concat_of_two_scales_has_no_grid() -> None:
    assert set(grids("e = Concat<axis = 1>(b, d) y = Transpose(e)", "r")) == {"b", "d"}


def test_what_computes_ends_the_grid() -> None:
    assert set(grids("e = Relu(b) y = Transpose(e)")) == {"b", "d"}
    assert set(grids("e = AveragePool<kernel_shape = [2, 2]>(b) y = Transpose(e)")) == {"b", "d"}


def test_every_move_is_one() -> None:
    for name in data_movement.MOVES:
        definition = ops.find("", name)
        assert definition is not None
        assert definition.passthrough, name


def test_a_wide_concat_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, same = count(), data_movement._same_constants
    monkeypatch.setattr(data_movement, "_same_constants", lambda one, other: (next(compared), same(one, other))[1])
    width = 50
    pairs = " ".join(f"q{i} = QuantizeLinear(x, s, p) d{i} = DequantizeLinear(q{i}, s, p)" for i in range(width))
    found = grids(f"{pairs} y = Concat<axis = 1>({', '.join(f'd{i}' for i in range(width))})")
    assert "y" in found
    assert next(compared) <= 2 * width  # quantizers() looks for derived biases first


def test_a_concat_of_moved_and_direct_values_is_decided_when_the_last_arrives() -> None:
    body = "e = Transpose<perm = [0, 1, 2, 3]>(b) f = Concat<axis = 1>(e, b, d) y = Identity(f)"
    assert set(grids(body)) == set("bdefy")
    assert set(grids(body, "r")) == set("bde")
