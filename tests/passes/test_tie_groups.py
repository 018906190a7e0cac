"""tie-groups: the quantizers of a group read the same constants."""

import numpy as np
import onnx
import pytest

from onnxqat.errors import ModelError
from onnxqat.passes.place_qdq import PlaceQdq
from onnxqat.passes.tie_groups import TieGroups
from onnxqat.types import Placement, QParams, QType
from tests.passes.checks import check_pass, parse

PAIR = """{0}_q = QuantizeLinear({0}, {1}_scale, {1}_zp) {0}_d = DequantizeLinear({0}_q, {1}_scale, {1}_zp)"""
CONSTANTS = "float a_scale = {0.5}, int8 a_zp = {1}"
SAME = CONSTANTS + ", float b_scale = {0.5}, int8 b_zp = {1}"
OTHER = CONSTANTS + ", float b_scale = {0.25}, int8 b_zp = {2}"


def text(constants: str, second: str) -> str:
    return f"""g (float[N] a, float[N] b) => (float[N] y) <{constants}> {{
        {PAIR.format("a", "a")} {PAIR.format("b", second)} y = Add(a_d, b_d) }}"""


def test_equal_values_become_one_constant() -> None:
    check_pass(TieGroups([["a", "b"]]), text(SAME, "b"), text(CONSTANTS, "a"), inside_if="skip", inside_function="skip")


def test_the_first_wins() -> None:
    model = parse(text(OTHER, "b"))
    for group, kept in ((["a", "b"], "a"), (["b", "a"], "b")):
        result = TieGroups([group]).run(model)
        assert {i.name for i in result.model.graph.initializer} == {f"{kept}_scale", f"{kept}_zp"}
        assert not TieGroups([group]).run(result.model).changed


def test_a_constant_that_others_read_stays() -> None:
    both = (
        text(SAME, "b")
        .replace("=> (float[N] y)", "=> (float[N] y, float[N] z)")
        .replace("y = Add", "z = Mul(a, b_scale) y = Add")
    )
    result = TieGroups([["a", "b"]]).run(parse(both))
    assert {i.name for i in result.model.graph.initializer} == {"a_scale", "a_zp", "b_scale"}


@pytest.mark.parametrize("groups", [[], [["a"]], [["a", "missing"]], [["y", "missing"]]])
def test_nothing_to_tie(groups: list[list[str]]) -> None:
    check_pass(TieGroups(groups), text(OTHER, "b"), None, inside_if="skip")  # there `a` has a quantizer a branch


def test_narrow_grids() -> None:
    qparams = QParams(np.float32(0.5), np.int64(0), QType("uint8", 0, 15))
    model = PlaceQdq([Placement("a", qparams, "r"), Placement("b", qparams, "r")]).run(
        parse("g (float[N] a, float[N] b) => (float[N] y) { y = Add(a, b) }")
    )
    result = TieGroups([["a", "b"]]).run(model.model)
    onnx.checker.check_model(result.model, full_check=True)
    assert {n.input[1] for n in result.model.graph.node if n.op_type.endswith("Linear")} == {"a_scale"}


@pytest.mark.parametrize("constants", ["float b_scale = {0.5}, uint8 b_zp = {1}"])
def test_other_grids_are_refused(constants: str) -> None:
    with pytest.raises(ModelError, match="'a' and 'b' cannot be tied") as caught:
        TieGroups([["a", "b"]]).run(parse(text(f"{CONSTANTS}, {constants}", "b")))
    assert caught.value.code == "pass-precondition"


def test_other_scopes_are_refused() -> None:
    inner = """g (float[N] a, float[N] b, bool c) => (float[N] y) <%s> { %s
        y = If(c) <then_branch = t () => (float[N] r) { %s r = Add(a_d, b_d) }, else_branch = e () => (float[N] s) { s = Neg(a_d) }> }"""
    model = parse(inner % (SAME, PAIR.format("a", "a"), PAIR.format("b", "b")))
    with pytest.raises(ModelError, match="cannot be tied"):
        TieGroups([["a", "b"]]).run(model)
