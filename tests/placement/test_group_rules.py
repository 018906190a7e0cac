"""A table says of each kind of group whether it is parts, one operator, or float as a whole."""

from pathlib import Path

import pytest

from onnxqat.analysis.groups.kinds import KINDS
from onnxqat.backends import schema
from onnxqat.errors import BackendError
from tests.backends.planning import edges, plan, reasons, table_file, weight

GELU = f"""<ir_version: 8, opset_import: ["" : OPSET]> g (float[2,4] x) => (float[2,4] y) <float[4,4] w = {weight(4, 4)}, float one = {{1}},
    float half = {{0.5}}, float root = {{1.41421354}}> {{ h = MatMul(x, w) d = Div(h, root) e = Erf(d) s = Add(e, one)
    p = Mul(h, s) a = Mul(p, half) y = MatMul(a, w) }}"""
ROTARY = f"""g (float[1,2,3,4] x, float[3,4] cos, float[3,4] sin) => (float[1,2,3,4] y) <float[4,4] w = {weight(4, 4)},
    int64[2] halves = {{2, 2}}> {{ h = MatMul(x, w) p = Mul(h, cos) a, b = Split <axis = -1> (h, halves) n = Neg(b)
    r = Concat <axis = -1> (n, a) t = Mul(r, sin) o = Add(p, t) y = MatMul(o, w) }}"""
BOTH = [
    name
    for name in schema.names()
    if any(s.axis is None and s.use for r in schema.load(name).ops.values() for s in r.inputs)
]


def table(tmp_path: Path, rule: str, **more: str) -> str:
    keys = "".join(f"{key}: {value}\n" for key, value in more.items())
    return table_file(
        tmp_path,
        f"schema: 1\nbackend: mine\ndescription: mine\nextends: qnn-htp\n{keys}groups: {{Gelu: {rule}}}\n"
        "ops: {Gelu: {in: [act], out: [act]}, Div: null, Erf: {in: [act], out: [act]}}\n",
    )


@pytest.mark.parametrize("name", BOTH)
def test_every_table_that_quantizes_activations_has_a_rule_for_each_kind(name: str) -> None:
    assert set(schema.load(name).groups) == set(KINDS)


def test_float_as_a_whole(tmp_path: Path) -> None:
    found = plan(GELU.replace("OPSET", "17"), table(tmp_path, "float"))
    assert set(edges(found)) == {"x", "w", "h", "a", "y"}
    assert reasons(found)["e_Erf"] == "part of a Gelu, which stays in float as a whole"


def test_parts_have_the_pairs_of_their_rows(tmp_path: Path) -> None:
    assert {"h", "e", "s", "p", "a"} <= set(edges(plan(GELU.replace("OPSET", "17"), table(tmp_path, "parts"))))


@pytest.mark.parametrize("opset", [17, 20])
def test_fused_to_the_operator_of_the_row(tmp_path: Path, opset: int) -> None:
    found = plan(GELU.replace("OPSET", str(opset)), table(tmp_path, "fused"))
    assert set(edges(found)) == {"x", "w", "h", "a", "y"}
    assert not found.float_nodes


def test_fused_where_the_target_does_not_read_the_opset_is_float(tmp_path: Path) -> None:
    found = plan(GELU.replace("OPSET", "17"), table(tmp_path, "fused", opset="[13, 19]"))
    assert set(edges(found)) == {"x", "w", "h", "a", "y"}
    assert "stays in float as a whole" in reasons(found)["e_Erf"]


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "openvino-cpu", "tensorrt"])
def test_no_pair_inside_a_rotary_embedding(backend: str) -> None:
    found = set(edges(plan(ROTARY, backend)))
    assert not found & {"p", "a", "b", "n", "r", "t"}
    assert {"x", "w", "o"} <= found


def test_unknown_kinds_and_operators_that_there_are_not(tmp_path: Path) -> None:
    head = "schema: 1\nbackend: mine\ndescription: mine\nextends: qnn-htp\n"
    for line, why in (("groups: {Glu: float}", "Glu"), ("groups: {RotaryEmbedding: fused}", "RotaryEmbedding")):
        with pytest.raises(BackendError, match=why):
            schema.load(table_file(tmp_path, head + line))
        schema.load.cache_clear()
