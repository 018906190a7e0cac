"""Branches of If that no calibration batch takes are named where ranges depend on them."""

from typing import Any

import numpy as np
import onnx
import pytest

from onnxqat.calibration.taken_branches import Conditions
from onnxqat.graph import io
from onnxqat.insertion.insert import insert_qdq
from tests.backends.planning import weight

# The outer condition is computed, the inner one an input; the inner If runs where the outer takes its then_branch.
NESTED = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[N,2] x, bool c) => (float[N,2] y, float[N,2] z)
<float[2,2] w = {weight(2, 2)}, float[2,2] v = {weight(2, 2)}, float zero = {{0}}> {{
    a = MatMul(x, w)
    m = ReduceMax<keepdims = 0>(x)
    d = Greater(m, zero)
    ["outer"] t = If(d) <
        then_branch = yes () => (float[N,2] r) {{
            ["inner"] r = If(c) <
                then_branch = yes2 () => (float[N,2] p) {{ p = MatMul(a, v) }},
                else_branch = no2 () => (float[N,2] q) {{ q = Neg(a) }}> }},
        else_branch = no () => (float[N,2] s) {{ s = Identity(a) }}>
    y = MatMul(t, v)
    z = MatMul(a, v) }}"""


def said(*batches: tuple[bool, bool], **options: Any) -> list[str]:
    """What is said of branches; each batch is (outer, inner) condition."""
    values = np.abs(np.random.default_rng(0).normal(size=(4, 2))).astype(np.float32)
    data = [{"x": values if outer else -values, "c": np.asarray(inner)} for outer, inner in batches]
    result = insert_qdq(onnx.parser.parse_model(NESTED), data=data, **options)
    return [f"{r.concern} {r.nodes}: {r.message}" for r in result.remarks if "takes" in r.message]


def test_nothing_is_said_where_all_are_taken() -> None:
    assert said((True, True), (True, False), (False, True)) == []


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "tensorrt"])  # tensorrt observes nothing inside no2 and no
def test_the_inner_branch_that_is_not_taken(backend: str) -> None:
    (text,) = said((True, True), (False, True), backend=backend)
    assert text.startswith("result ('inner',): no calibration batch takes else_branch of 'inner': the ranges of ")
    assert "behind it are those of then_branch alone" in text


def test_a_condition_that_was_not_computed_holds_nothing() -> None:
    """onnxruntime gives None for it where it stands in a branch that did not run."""
    conditions = Conditions(io.load(onnx.parser.parse_model(NESTED)), ["x", "c"])
    conditions.take({"c": np.asarray(True)}, [None])
    assert conditions.held == {"d": set(), "c": {True}}


def test_an_inner_if_that_never_ran_is_not_named() -> None:
    (text,) = said((False, True), (False, False))
    assert text.startswith("result ('outer',): no calibration batch takes then_branch of 'outer'")


def test_both_are_named_at_once() -> None:
    (text,) = said((True, False))
    assert text.startswith("result ('inner', 'outer'): no calibration batch takes then_branch of 'inner', else_branch")


def test_nothing_is_said_where_no_range_depends_on_the_branch() -> None:
    table = {"backend": "onnxruntime-int4"}  # weights alone
    assert said((True, True), **table) == []
