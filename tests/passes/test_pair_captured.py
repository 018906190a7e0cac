"""What a body captures behind data movement gets a pair, so that onnxruntime's default session opens the file."""

import onnx_ir as ir
import pytest

from onnxqat.graph import io, qdq, walk
from onnxqat.passes.pair_captured import PairCaptured
from onnxqat.runtime.isolated_session import Settings, TriedSession
from tests.passes.checks import check_pass, parse, run_checked

CONSTANTS = """float s = {0.1}, uint8 z = {3}, int64[1] first = {0}, int64[1] one = {1}, int64[2] flat = {1, -1},
    int64 trips = {2}, bool go = {1}, float zero = {0}"""
IF = """y = If(c) <then_branch = a () => (float u) { u = ReduceMax <keepdims = 0> (t) },
    else_branch = b () => (float v) { v = ReduceMin <keepdims = 0> (t) }>"""
LOOP = """y = Loop(trips, go, zero) <body = b (int64 i, bool m, float l) => (bool k, float n) {
    k = Identity(m) r = ReduceMax <keepdims = 0> (t) n = Add(l, r) }>"""
SCAN = """y, w = Scan <num_scan_inputs = 1, body = b (float l, float[4] e) => (float n, float[4] o) {
    o = Identity(e) r = ReduceMax <keepdims = 0> (t) n = Add(l, r) }> (zero, lines)"""
MOVES = {
    "transpose": "t = Transpose(d)",
    "reshape": "t = Reshape(d, flat)",
    "squeeze": "t = Squeeze(d, first)",
    "unsqueeze": "t = Unsqueeze(d, one)",
    "slice": "t = Slice(d, first, one, one)",
    "pool": "t = MaxPool <kernel_shape = [2]> (d)",
    "identity": "f = Transpose(d) t = Identity(f)",
    "two": "f = Transpose(d) t = Reshape(f, flat)",
}


def text(move: str, body: str = IF, more: str = "", outputs: str = "") -> str:
    return f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[1,3,4] x, float[2,4] lines, bool c) => (float y{outputs}) <{CONSTANTS}> {{
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) {move} {more} {body} }}"""


def opens(model: ir.Model) -> bool:
    """Whether the default session does; in a child process, which what is tried here may end."""
    TriedSession(model, Settings(optimize=True), "the model")
    return True


@pytest.mark.parametrize("move", MOVES)
def test_every_operator_that_pairs_are_moved_over(move: str) -> None:
    result = run_checked(PairCaptured(), parse(text(MOVES[move])), 0.0)
    assert result.changed
    assert len(qdq.quantizers(io.load(result.model))) == 2
    assert opens(io.load(result.model))


@pytest.mark.parametrize("body", [LOOP, SCAN])
def test_every_operator_with_bodies(body: str) -> None:
    result = run_checked(PairCaptured(), parse(text(MOVES["transpose"], body)), 0.0)
    assert result.changed
    assert opens(io.load(result.model))


def test_other_readers_stay() -> None:
    given = text(MOVES["transpose"], more="k = Sigmoid(t)", outputs=", float[4,3,1] k")
    result = run_checked(PairCaptured(), parse(given), 0.0)
    (sigmoid,) = [node for node in walk.nodes(io.load(result.model)) if node.op_type == "Sigmoid"]
    assert sigmoid.inputs[0] is not None
    assert sigmoid.inputs[0].name == "t"
    assert opens(io.load(result.model))


def test_the_new_pair_reads_the_constants_of_the_first() -> None:
    pair = "t_QuantizeLinear_Output = QuantizeLinear(t, s, z) t_DequantizeLinear_Output = DequantizeLinear(t_QuantizeLinear_Output, s, z)"
    after = text(MOVES["transpose"], IF.replace("(t)", "(t_DequantizeLinear_Output)"), pair)
    check_pass(PairCaptured(), text(MOVES["transpose"]), after, inside_if="skip")


@pytest.mark.parametrize("move", ["t = Identity(d)", "t = Flatten(d)", "t = Relu(d)", "p = Relu(d) t = Transpose(p)"])
def test_what_nothing_is_moved_over_is_left_alone(move: str) -> None:
    check_pass(PairCaptured(), text(move), None, inside_if="skip")
    assert opens(io.load(parse(text(move))))
