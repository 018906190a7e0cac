"""What every compiler removes: Identity, Dropout at inference and their like; and activations of layers in float."""

import onnx
import pytest

from onnxqat.backends import schema
from onnxqat.graph import data_movement
from onnxqat.placement import fusion_chains
from onnxqat.types import TensorSpec
from tests.backends.planning import edges, graph, plan, reasons, root, spec

BACKENDS = [name for name in schema.names() if schema.load(name).placement == "both"]
W = "float[2,2,1,1] w = {1,2,3,4}"
NOTHING = [
    "d = Identity(c)",
    "d = Cast<to = 1>(c)",
    "d = Concat<axis = 1>(c)",
    "d = Max(c)",
]


def model(body: str) -> str:
    return f"g (float[1,2,4,4] x) => (float[1,2,4,4] y) <{W}> {{ {body} }}"


@pytest.mark.parametrize("body", NOTHING)
@pytest.mark.parametrize("backend", BACKENDS)
def test_there_is_one_grid(backend: str, body: str) -> None:
    found = plan(model(f"c = Conv(x, w) {body} y = Conv(d, w)"), backend)
    assert {"c", "d"} & edges(found).keys() == {"d"}
    assert not reasons(found)


@pytest.mark.parametrize("body", ["d = Dropout(c)", "d, m = Dropout(c)"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_both_sides_of_a_dropout_lie_on_one_grid(backend: str, body: str) -> None:
    """It stays, since training drops elements there."""
    found = plan(model(f"c = Conv(x, w) {body} y = Conv(d, w)"), backend)
    if isinstance(edges(found)["c"][0].decision, TensorSpec):
        assert "d" in found.bare or root(found, "d") == "c"
    assert spec(found, "c").qtype == spec(found, "d" if "d" in edges(found) else "c").qtype
    assert not reasons(found)


def test_what_has_another_grid_behind_it_carries_that_from_the_start() -> None:
    """A mask that nothing reads has no say in it."""
    text = model("c = Conv(x, w) d, m = Dropout(c) e = Identity(d) y = Conv(e, w)")
    found = plan(text, "qnn-htp", node_bits=(("y_Conv", 8, 16),))
    assert [e.decision.qtype.storage for e in edges(found)["c"] if isinstance(e.decision, TensorSpec)] == ["uint16"]


@pytest.mark.parametrize(
    "body",
    ["d = Identity(t) y = Relu(d)", "d, m = Dropout(t) e = Identity(d) y = Relu(e)"],
)
def test_layers_fuse_across_it(body: str) -> None:
    fusion = fusion_chains.behind(graph(model(f"t = Conv(x, w) {body}"))[0], schema.load("onnxruntime-cpu"))
    assert fusion.output.name == "y"


def test_dropout_that_drops_computes() -> None:
    text = """g (float[4] x, bool m) => (float[4] y, float[4] z, float[4] u) <bool on = {1}, bool off = {0}> {
        y = Dropout(x, , m) z = Dropout(x, , on) u = Dropout(x, , off) }"""
    assert [data_movement.is_removed(node) for node in graph(text)] == [False, False, True]


def test_casts_between_types_compute() -> None:
    text = "g (float[4] x) => (float16[4] y) { y = Cast<to = 10>(x) }"
    assert not data_movement.is_removed(graph(text)[0])


@pytest.mark.parametrize("body", ["r = Relu(c)", "d = Dropout(c) r = Relu(d)"])
@pytest.mark.parametrize("backend", ["qnn-htp", "rknn", "litert-int8", "vitis-dpu"])
def test_the_activation_of_a_layer_in_float_stays_with_it(backend: str, body: str) -> None:
    found = plan(model(f"c = Conv(x, w) {body} y = Conv(r, w)"), backend, exclude=("c_Conv",))
    assert reasons(found)["r_Relu"] == "the activation of c_Conv, which stays in float"
    assert "c" not in edges(found)
    assert "r" in edges(found)


def test_an_activation_with_another_reader_in_front_of_it_is_a_node_of_its_own() -> None:
    text = onnx.parser.parse_graph(model("c = Conv(x, w) r = Relu(c) s = Conv(c, w) y = Add(r, s)"))
    found = plan(
        onnx.helper.make_model(text, opset_imports=[onnx.helper.make_opsetid("", 21)]), "qnn-htp", exclude=("c_Conv",)
    )
    assert "r_Relu" not in reasons(found)


@pytest.mark.parametrize(("mode", "kept"), [("", True), ("<mode = 'reflect'>", True), ("<mode = 'wrap'>", False)])
def test_padding_by_its_mode(mode: str, kept: bool) -> None:
    """HTP takes no Pad of mode wrap; a mode that is left out is the default."""
    text = f"""g (float[1,2,4,4] x) => (float[1,2,6,6] y) <{W}, int64[8] p = {{0,0,1,1,0,0,1,1}}, float v = {{1}}> {{
        c = Conv(x, w) d = Pad{mode.replace("'", '"')}(c, p, v) y = Conv(d, w) }}"""
    found = plan(text, "qnn-htp")
    assert reasons(found) == ({} if kept else {"d_Pad": "qnn-htp has no row for Pad of mode wrap"})
    assert (root(found, "d") == "c") is kept


def test_a_resize_without_a_mode_is_nearest() -> None:
    text = f"""g (float[1,2,4,4] x) => (float[1,2,8,8] y) <{W}, float[4] s = {{1,1,2,2}}> {{
        c = Conv(x, w) d = Resize(c, , s) y = Conv(d, w) }}"""
    found = plan(text)
    assert root(found, "d") == "c"
    assert not reasons(found)
