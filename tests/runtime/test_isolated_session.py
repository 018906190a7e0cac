"""What onnxruntime does not survive ends a child process, and comes back as an error with a code."""

import os
import signal
import threading
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxqat.errors import ModelError
from onnxqat.graph import io
from onnxqat.isolation import limits
from onnxqat.runtime.isolated_session import Settings, TriedSession
from onnxqat.runtime.session import Session
from tests.passes.checks import parse

ONES = np.ones((1, 4), np.float32)
# It goes on while what it carries is smaller than 5.
LOOP = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1,4] x) => (float[1,4] y) <bool go = {1}, float[4,4] w = {1,0,0,0, 0,1,0,0, 0,0,1,0, 0,0,0,1}> {
    y = Loop ("", go, x) <body = b (int64 i, bool c, float[1,4] l) => (bool more, float[1,4] m) {
        five = Constant <value = float {5}> ()  largest = ReduceMax <keepdims = 0> (l)  more = Less (largest, five)
        m = MatMul (l, w) }> }"""
EXPAND = """g (float[1] x) => (float y) <float[1] one = {1}> {
    n = Cast <to = 7> (x) wide = Expand(one, n) y = ReduceSum <keepdims = 0> (wide) }"""
CAPTURED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2,4] x, bool c) => (float y) <float s = {0.1}, uint8 z = {3}> {
    r = Relu(x) q = QuantizeLinear(r, s, z) d = DequantizeLinear(q, s, z) t = Transpose(d)
    y = If(c) <then_branch = a () => (float u) { u = ReduceMax <keepdims = 0> (t) },
               else_branch = b () => (float v) { v = ReduceMin <keepdims = 0> (t) }> }"""


def test_a_signal_becomes_an_error() -> None:
    model = parse("g (float[1,4] x) => (float[1,4] y) <float[4] s = {1, 1, 1, 1}> { y = LayerNormalization(x, s) }")
    model.graph.node[0].input.append("")  # SIGSEGV in onnxruntime 1.32; loading drops it
    with pytest.raises(ModelError, match=r"SIGSEGV .*the model.*default graph optimizations") as caught:
        TriedSession(ir.from_proto(model), Settings(optimize=True), "the model").run(["y"], {"x": ONES})
    assert caught.value.code == "runtime-failed"
    good = Session(io.load(model), optimize=True)
    assert good.run({"x": ONES})["y"].tolist() == [[0.0] * 4]


def test_the_default_session_goes_around_the_optimizer_that_it_crashes_in() -> None:
    session = Session(io.load(parse(CAPTURED)), optimize=True)
    assert session.unmoved
    given = np.float32([[0, 0.1, 0.2, 0.3], [0.4, 0.5, 0.6, 0.7]])
    assert session.run({"x": given, "c": np.array(True)})["y"] == np.float32(0.1) * 7


def test_the_default_session_keeps_a_relu_in_front_of_float8() -> None:
    zero = onnx.helper.make_tensor("z", onnx.TensorProto.FLOAT8E4M3FN, [], [0.0])
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 19]>
        g (float[4] x) => (float[4] y) <float s = {0.5}> {
        r = Relu(x) q = QuantizeLinear(r, s, z) y = DequantizeLinear(q, s, z) }""")
    model.graph.initializer.append(zero)
    session = Session(io.load(model), optimize=True)
    assert session.keeps_relu
    assert session.run({"x": np.float32([-2, -1, 1, 2])})["y"].tolist() == [0, 0, 1, 2]


def test_a_loop_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(limits.SECONDS, "1")
    session = Session(io.load(parse(LOOP)), optimize=False)
    with pytest.raises(ModelError, match="did not finish one sample of the model within 1 s") as caught:
        session.run({"x": ONES})
    assert caught.value.code == "runtime-failed"
    assert limits.SECONDS in caught.value.hint


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
def test_opening_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    model = io.load(parse("g (float[1,4] x) => (float[1,4] y) { y = Relu(x) }"))
    Session(model, optimize=False)  # the child process is up
    (stopped,) = (p for p in Path("/proc").glob("[0-9]*/stat") if is_trial(p))
    os.kill(int(stopped.parent.name), signal.SIGSTOP)
    monkeypatch.setenv(limits.SECONDS, "0.1")
    with pytest.raises(ModelError, match=r"did not finish opening the model within 0\.5") as caught:
        Session(model, optimize=False)
    assert caught.value.code == "runtime-failed"
    monkeypatch.delenv(limits.SECONDS)
    assert Session(model, optimize=False).run({"x": -ONES})["y"].tolist() == [[0.0] * 4]


def is_trial(stat: Path) -> bool:
    """Whether this is the child process of this one in which models are tried."""
    try:
        parent = int(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[1])
        return parent == os.getpid() and b"isolation/child.py" in stat.with_name("cmdline").read_bytes()
    except OSError:
        return False


def test_an_interrupt_ends_a_loop() -> None:
    session = Session(io.load(parse(LOOP)), optimize=False)
    assert session.run({"x": 5 * ONES})["y"].tolist() == [[5.0] * 4]
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  # the timer must not run ahead of the block
        threading.Timer(0.1, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
        session.run({"x": ONES})
    assert session.run({"x": 5 * ONES})["y"].tolist() == [[5.0] * 4]


def test_memory_that_data_ask_for() -> None:
    session = Session(io.load(parse(EXPAND)), optimize=False)
    with pytest.raises(ModelError) as caught:
        session.run({"x": np.float32([1e12])})
    assert caught.value.code == "model-too-large"
    assert limits.MEMORY in caught.value.hint


def test_what_one_sample_is_refused_for_is_the_batchs_own_matter() -> None:
    model = parse("g (float[N,4] x) => (float[2,4] y) <int64[2] s = {2, 4}> { y = Reshape(x, s) }")
    assert Session(io.load(model), optimize=False).run({"x": np.ones((2, 4), np.float32)})["y"].shape == (2, 4)


def test_a_limit_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(limits.MEMORY, "much")
    with pytest.raises(Exception, match="ONNXQAT_MEMORY_LIMIT is 'much'"):
        limits.largest_tensor()


def doubled(times: int) -> onnx.ModelProto:
    nodes = "".join(f"k{i + 1} = Concat <axis = 1> (k{i}, k{i}) " for i in range(times))
    return parse(f"g (float[N,4] x) => (float[N,1] y) {{ k0 = Relu(x) {nodes} y = ReduceMax <axes = [1]> (k{times}) }}")


@pytest.mark.parametrize("times", [29, 45])
def test_a_bomb_is_refused_before_it_is_run(times: int) -> None:
    with pytest.raises(ModelError, match=r"tensor 'k29'") as caught:
        Session(io.load(doubled(times)), optimize=False)
    assert caught.value.code == "model-too-large"
