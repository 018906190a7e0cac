"""fold-pad: zeros around the input of a convolution are its own padding."""

import pytest

from onnxqat.passes.fold_pad import FoldPad
from tests.passes.checks import check_pass

BEFORE = "g (float[1,1,4,4] x) => (float[A,B,C,D] y) "
WEIGHT = "float[1,1,2,2] w = {1, 2, 3, 4}"


def test_zeros_become_padding() -> None:
    check_pass(
        FoldPad(),
        f"""{BEFORE} <{WEIGHT}, int64[8] pads = {{0, 0, 0, 1, 0, 0, 2, 0}}> {{
        p = Pad(x, pads) y = Conv <pads = [1, 0, 0, 0], strides = [2, 1]> (p, w) }}""",
        f"{BEFORE} <{WEIGHT}> {{ y = Conv <pads = [1, 1, 2, 0], strides = [2, 1]> (x, w) }}",
    )


def test_two_convolutions_share_a_pad() -> None:
    check_pass(
        FoldPad(),
        f"""{BEFORE} <{WEIGHT}, int64[8] pads = {{0, 0, 1, 1, 0, 0, 1, 1}}, float zero = {{0}}> {{
        p = Pad(x, pads, zero) a = Conv <auto_pad = "VALID"> (p, w) b = Conv(p, w) y = Add(a, b) }}""",
        f"""{BEFORE} <{WEIGHT}> {{
        a = Conv <pads = [1, 1, 1, 1]> (x, w) b = Conv <pads = [1, 1, 1, 1]> (x, w) y = Add(a, b) }}""",
    )


@pytest.mark.parametrize(
    ("constants", "nodes"),
    [
        ("int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}, float one = {1}", "p = Pad(x, pads, one) y = Conv(p, w)"),
        ("int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}", 'p = Pad <mode = "edge"> (x, pads) y = Conv(p, w)'),
        ("int64[8] pads = {0, 0, -1, 1, 0, 0, 1, 1}", "p = Pad(x, pads) y = Conv(p, w)"),
        ("int64[8] pads = {1, 0, 1, 1, 0, 0, 1, 1}", "p = Pad(x, pads) y = Conv(p, w)"),
        ("int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}", "p = Pad(x, pads) c = Conv(p, w) r = Relu(p) y = Concat <axis = 1> (r, r)"),
        ("int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}", 'p = Pad(x, pads) y = Conv <auto_pad = "SAME_UPPER"> (p, w)'),
    ],
)  # fmt: skip
def test_other_pads_are_left_alone(constants: str, nodes: str) -> None:
    result = check_pass(FoldPad(), f"{BEFORE} <{WEIGHT}, {constants}> {{ {nodes} }}", None)
    assert result.remarks
