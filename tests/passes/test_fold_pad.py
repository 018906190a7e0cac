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


POOLED = "g (float[1,1,4,4] x) => (float[A,B,C,D] y) "
AROUND = "int64[8] pads = {0, 0, 1, 0, 0, 0, 1, 1}"


def test_lowest_numbers_become_padding_of_a_maximum() -> None:
    check_pass(
        FoldPad(),
        f"""{POOLED} <{AROUND}, float low = {{-3.4028234663852886e+38}}> {{
        p = Pad(x, pads, low) y = MaxPool <kernel_shape = [3, 2], strides = [2, 2]> (p) }}""",
        f"{POOLED} {{ y = MaxPool <kernel_shape = [3, 2], strides = [2, 2], pads = [1, 0, 1, 1]> (x) }}",
    )


@pytest.mark.parametrize(
    ("value", "pool"),
    [
        ("-1e30", "y = MaxPool <kernel_shape = [3, 2]> (p)"),
        ("-3.4028234663852886e38", "y = MaxPool <kernel_shape = [1, 2]> (p)"),
        ("-3.4028234663852886e38", "y = MaxPool <kernel_shape = [3, 2], ceil_mode = 1> (p)"),
        ("-3.4028234663852886e38", "y, i = MaxPool <kernel_shape = [3, 2]> (p)"),
    ],
)
def test_where_the_maximum_would_be_another_the_pad_stays(value: str, pool: str) -> None:
    check_pass(FoldPad(), f"{POOLED} <{AROUND}, float low = {{{value}}}> {{ p = Pad(x, pads, low) {pool} }}", None)


def test_padded_weights_are_left_alone() -> None:
    text = f"""g (float[1,1,8,8] x, float[1,1,2,2] k) => (float[A,B,C,D] y) <{AROUND}, float zero = {{0}}> {{
        p = Pad(k, pads, zero) y = Conv(x, p) }}"""
    check_pass(FoldPad(), text, None)
