"""pad-all-axes: Pad gets amounts for every axis."""

import numpy as np
import onnx
import pytest

from onnxqat.passes.pad_all_axes import PadAllAxes
from tests.passes.checks import check_pass, ort_run, parse

HEAD = '<ir_version: 8, opset_import: ["" : 18]> '


@pytest.mark.parametrize(
    ("axes", "pads", "everywhere"),
    [("2", "1, 2", "0, 0, 1, 0, 0, 2"), ("-1, 0", "1, 2, 3, 4", "2, 0, 1, 4, 0, 3"), ("0, 1, 2", "1, 2, 3, 4, 5, 6", "1, 2, 3, 4, 5, 6")],
)  # fmt: skip
def test_constant_amounts(axes: str, pads: str, everywhere: str) -> None:
    a, p = axes.count(",") + 1, pads.count(",") + 1
    check_pass(
        PadAllAxes(),
        f"{HEAD} g (float[2,3,4] x) => (float[A,B,C] y) <int64[{p}] pads = {{{pads}}}, int64[{a}] axes = {{{axes}}}> "
        "{ y = Pad(x, pads, , axes) }",
        f"{HEAD} g (float[2,3,4] x) => (float[A,B,C] y) <int64[6] pads_all_axes = {{{everywhere}}}> "
        "{ y = Pad(x, pads_all_axes) }",
        inside_function="left",  # ranks are not known there
    )


def test_a_fill_value_stays() -> None:
    result = check_pass(
        PadAllAxes(),
        f"{HEAD} g (float[2,3] x) => (float[A,B] y) <int64[2] pads = {{1, 1}}, int64[1] axes = {{1}}, float v = {{9}}> "
        "{ y = Pad(x, pads, v, axes) }",
        f"{HEAD} g (float[2,3] x) => (float[A,B] y) <int64[4] pads_all_axes = {{0, 1, 0, 1}}, float v = {{9}}> "
        "{ y = Pad(x, pads_all_axes, v) }",
        inside_function="left",
    )
    assert result.remarks[0].message == "Pad got amounts for all axes"


def test_amounts_that_are_an_input() -> None:
    model = parse(
        f"{HEAD} g (float[1,2,5,5] x, int64[2] amount) => (float[1,2,H,W] y) <int64[2] zero = {{0, 0}}, int64[2] axes = {{3, 2}}> "
        '{ pads = Concat<axis = 0>(zero, amount) y = Pad<mode = "reflect">(x, pads, , axes) }'
    )
    result = PadAllAxes().run(model)
    onnx.checker.check_model(result.model, full_check=True)
    assert not PadAllAxes().run(result.model).changed
    feeds = {"x": np.arange(50, dtype=np.float32).reshape(1, 2, 5, 5), "amount": np.int64([2, 1])}
    np.testing.assert_array_equal(ort_run(model, feeds)["y"], ort_run(result.model, feeds)["y"])
    assert [n.op_type for n in result.model.graph.node] == ["Concat", "Concat", "Gather", "Pad"]


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2,3] x) => (float[A,B] y) <int64[4] pads = {0, 1, 0, 1}> { y = Pad(x, pads) }",
        "g (float[2,3] x, int64[1] axes) => (float[A,B] y) <int64[2] pads = {0, 0}> { y = Pad(x, pads, , axes) }",
    ],
)
def test_left_alone(text: str) -> None:
    check_pass(PadAllAxes(), HEAD + text, None)
