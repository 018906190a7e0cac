"""Nodes left in float that onnxruntime would run on codes all the same, between two pairs."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import onnxqat
from onnxqat.backends import schema
from onnxqat.placement.table_overrides import Overrides
from tests.backends.planning import edges, plan, proto, reasons, weight

W = f"float[2,2,1,1] w = {weight(2, 2, 1, 1)}, float[2,2,2,2] k = {weight(2, 2, 2, 2)}"
POOL = "AveragePool<kernel_shape = [3,3], strides = [2,2], ceil_mode = 1, count_include_pad = 1>(r)"
"""Its last windows reach over the edge."""


def network(middle: str, last: str = "y = Conv(m, w)") -> str:
    """Two layers of which the second reads `m`, and between them `middle`, which reads `r`."""
    return f"""g (float[1,2,10,10] x) => (float[1,2,h,v] y) <{W}> {{
        a = Conv(x, w) r = Relu(a) {middle} ["last"] {last} }}"""


def paired(middle: str, last: str = "y = Conv(m, w)", exclude: tuple[str, ...] = ("mid",)) -> set[str]:
    """Computed tensors with a pair."""
    return set(edges(plan(network(middle, last), exclude=exclude))) - {"x", "w", "k", "y"}


@pytest.mark.parametrize(
    "middle",
    [
        '["mid"] m = Conv(r, k)',
        '["mid"] c = Conv(r, k) m = Relu(c)',
        '["mid"] c = Conv(r, k) m = Transpose<perm = [0,1,3,2]>(c)',
        '["mid"] c = ConvTranspose(r, k) n = Relu(c) m = Identity(n)',
        f'["mid"] m = {POOL}',
    ],
    ids=["layer", "Relu behind it", "data movement behind it", "ConvTranspose", "pool"],
)
def test_the_result_of_what_the_compiler_claims_has_no_pair(middle: str) -> None:
    found = plan(network(middle), exclude=("mid",))
    assert set(edges(found)) - {"x", "w", "k"} == {"r", "y"} - {"y" if "last" in reasons(found) else ""}
    assert reasons(found)["last"] == "mid, which stays in float, would run on integers if its result 'm' were quantized"


def test_pairs_stay_where_nothing_is_claimed() -> None:
    """Behind a float operator in between, another operator, no codes read, a computed weight."""
    assert paired('["mid"] c = Conv(r, k) t = Tanh(c) m = Tanh(t)') == {"r", "m"}
    assert paired('["mid"] m = MatMul(r, r)') == {"r", "m"}
    assert paired('["mid"] t = Tanh(r) c = Conv(t, k) m = Relu(c)', exclude=("t", "c")) == {"r", "m"}
    assert paired('["mid"] s = Sigmoid(r) m = Conv(s, k)', exclude=("mid", "m")) == {"r", "m"}
    assert paired('g = ReduceMax(r) t = Tanh(g) s = Add(k, t) ["mid"] m = Conv(r, s)') >= {"r", "m"}


@pytest.mark.parametrize(("read", "claimed"), [("t", False), ("u", True)], ids=["bare", "moved"])
def test_a_pair_that_another_reader_gets_is_read_behind_data_movement_alone(read: str, claimed: bool) -> None:
    """Nothing quantizes the result of Tanh as a whole: a float layer reads it bare, what moves it reads the pair."""
    middle = f"""t = Tanh(r) u = Transpose<perm = [0,1,3,2]>(t) ["mid"] c = Conv({read}, w)
        o = Conv(t, w) ["sum"] m = Add(c, o)"""
    found = plan(network(middle), exclude=("mid",))
    assert ("c" in edges(found)) is not claimed
    assert ("sum" in reasons(found)) is claimed


def test_what_reads_another_tensor_too_is_float_and_its_result_is_not() -> None:
    sum_behind = f'["mid"] m = {POOL.replace("strides = [2,2]", "pads = [1,1,1,1]")} ["sum"] s = Add(m, r)'
    found = plan(network(sum_behind, "y = Conv(s, w)"), exclude=("mid",))
    assert set(edges(found)) == {"x", "w", "r", "s", "y"}
    assert "sum" in reasons(found)


def run(model: onnx.ModelProto, x: np.ndarray, *, optimize: bool) -> np.ndarray:
    """The result in a session of onnxruntime."""
    options = onnxruntime.SessionOptions()
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize("backend", [n for n in schema.names() if n.startswith(("onnxruntime", "qnn", "ryzen"))])
def test_layers_in_float_stay_so_wherever_onnxruntime_reads_the_file(backend: str) -> None:
    """It rounds their weights in front of its execution providers."""
    found = plan(network('["mid"] m = Conv(r, k)'), backend, exclude=("mid",))
    assert not {"r", "m"} <= set(edges(found))


@pytest.mark.parametrize(
    ("middle", "exclude"),
    [
        ("m = Conv(r, k)", ("m",)),
        ("m = ConvTranspose<strides = [2,2]>(r, k)", ()),
        (f"m = {POOL}", ()),
        ("m = AveragePool<kernel_shape = [2,2], dilations = [2,2]>(r)", ()),
    ],
    ids=["layer", "ConvTranspose", "pool that counts otherwise", "pool with dilations"],
)
def test_sessions_compute_the_same(middle: str, exclude: tuple[str, ...]) -> None:
    """A weight with one large channel shows a scale that is not its own; the session took no pool with dilations."""
    model = proto(network(middle))
    kernel = np.full((2, 2, 2, 2), 0.011, np.float32)
    kernel[0, 0] = 3.0
    (stored,) = (t for t in model.graph.initializer if t.name == "k")
    stored.CopyFrom(onnx.numpy_helper.from_array(kernel, "k"))
    x = np.random.default_rng(0).normal(size=(1, 2, 10, 10)).astype(np.float32)
    result = onnxqat.insert_qdq(model, data={"x": x}, overrides=Overrides(exclude=exclude))
    written, optimized = (run(result.model, x, optimize=optimize) for optimize in (False, True))
    assert np.square(written - optimized).sum() < 1e-4 * np.square(written).sum(), "40 dB: single steps"
