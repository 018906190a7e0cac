"""split-hard-swish: the product of a HardSwish by itself."""

import pytest

from onnxqat.passes.split_hard_swish import SplitHardSwish
from tests.backends.planning import edges, plan, weight
from tests.passes.checks import check_pass


def test_gate_and_product() -> None:
    header = '<ir_version: 8, opset_import: ["" : 17]> '
    check_pass(
        SplitHardSwish(),
        header + "g (float[2,3] x) => (float[2,3] y) { y = HardSwish(x) }",
        header
        + "g (float[2,3] x) => (float[2,3] y) { y_gate = HardSigmoid <alpha = 0.16666667, beta = 0.5> (x) y = Mul(x, y_gate) }",
        atol=1e-6,
    )


@pytest.mark.parametrize(("backend", "splits"), [("onnxruntime-cpu", True), ("rknn", False), ("tensorrt", False)])
def test_only_where_the_product_alone_has_a_row(backend: str, splits: bool) -> None:
    text = f"""g (float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w = {weight(2, 2, 1, 1)}> {{
        c = Conv(x, w) h = HardSwish(c) y = Conv(h, w) }}"""
    found = edges(plan(text, backend))
    assert ("h_gate" in found) == splits
    assert "h" in found


@pytest.mark.parametrize(
    ("backend", "splits"), [("onnxruntime-cpu", True), ("onnxruntime-cpu-s8", True), ("snpe", False)]
)
def test_parts_that_an_exporter_chose_become_those_that_the_table_has(backend: str, splits: bool) -> None:
    """Paddle's exporter writes ``x * clip(x + 3, 0, 6) / 6``: two pairs that cost accuracy, and a division in float."""
    text = f"""g (float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w = {weight(2, 2, 1, 1)}, float three = {{3}},
        float zero = {{0}}, float six = {{6}}> {{ c = Conv(x, w) s = Add(c, three) r = Clip(s, zero, six) m = Mul(c, r)
        h = Div(m, six) y = Conv(h, w) }}"""
    found = edges(plan(text, backend))
    assert ("h_gate" in found, "s" in found or "m" in found) == (splits, not splits)


def test_an_excluded_node_stays() -> None:
    text = f"""g (float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w = {weight(2, 2, 1, 1)}> {{
        c = Conv(x, w) h = HardSwish(c) y = Conv(h, w) }}"""
    assert "h_gate" not in edges(plan(text, "onnxruntime-cpu", exclude=("h",)))
