"""fold-pad: zeros around the input of a convolution are its own padding."""

import re

import pytest

from onnxqat.passes.fold_pad import FoldPad
from tests.passes.checks import check_pass, parse, run_checked

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


ONES = "int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}"


@pytest.mark.parametrize(
    ("inputs", "constants", "nodes"),
    [
        ("float v", ONES, "p = Pad(x, pads, v) y = Conv(p, w)"),
        ("float v", ONES, "a = Abs(pads) p = Pad(x, a) y = Conv(p, w)"),
        ("float v", f"{ONES}, float z = {{0}}", "p = Pad(x, pads, z) r = Relu(p) c = Conv(p, w) y = Concat <axis = 1> (r, r)"),
        ("float v", ONES, "p = Pad(x, pads) y = Relu(p)"),
    ],
    ids=["the value is computed", "the amounts are computed", "another reads it first", "no layer reads it"],
)  # fmt: skip
def test_what_is_not_known_or_not_alone(inputs: str, constants: str, nodes: str) -> None:
    text = f"g (float[1,1,4,4] x, {inputs}) => (float[A,B,C,D] y) <{WEIGHT}, {constants}> {{ {nodes} }}"
    check_pass(FoldPad(), text, None)


@pytest.mark.parametrize(
    "amounts", ["int64[4] a = {1, 1, 1, 1}, int64[2] axes = {2, 3}", "int64[8] a = {0, 0, 1, 0, 0, 0, 1, 0}, int64[4] axes = {0, 1, 3, 2}"]
)  # fmt: skip
def test_named_axes_are_left_alone(amounts: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[1,1,4,4] x) => (float[A,B,C,D] y) <{WEIGHT}, float zero = {{0}}, {amounts}> {{
        p = Pad(x, a, zero, axes) y = Conv(p, w) }}"""
    check_pass(FoldPad(), text, None)


def test_a_pad_that_leaves_the_graph_stays() -> None:
    text = f"g (float[1,1,4,4] x) => (float[A,B,C,D] y, float[E,F,G,H] p) <{WEIGHT}, {ONES}> {{ p = Pad(x, pads) y = Conv(p, w) }}"
    check_pass(FoldPad(), text, None)


@pytest.mark.parametrize(
    ("attribute", "body"),
    [
        ('mode = "constant"', "p = Pad <mode : string = @mode> (x, a) y = Conv(p, w)"),
        ("pads = [0, 0, 0, 0]", "p = Pad(x, a) y = Conv <pads : ints = @pads> (p, w)"),
        ('auto_pad = "VALID"', "p = Pad(x, a) y = Conv <auto_pad : string = @auto_pad> (p, w)"),
        ("kernel_shape = [3, 2]", "p = Pad(x, a, l) y = MaxPool <kernel_shape : ints = @kernel_shape> (p)"),
        ("ceil_mode = 0", "p = Pad(x, a, l) y = MaxPool <kernel_shape = [3, 2], ceil_mode : int = @ceil_mode> (p)"),
    ],
)
def test_what_the_caller_of_a_function_decides_stays(attribute: str, body: str) -> None:
    name = attribute.partition(" ")[0]
    text = f"""<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[1,1,4,4] x) => (float[A,B,C,D] y) <{WEIGHT}> {{ y = local.f <{attribute}> (x, w) }}
        <domain: "local", opset_import: ["" : 17]> f <{name}> (x, w) => (y) {{
        a = Constant <value = int64[8] {{0, 0, 1, 0, 0, 0, 1, 1}}> ()
        l = Constant <value = float {{-3.4028234663852886e38}}> ()
        {body} }}"""
    model = parse(text)
    result = run_checked(FoldPad(), model, 0.0)
    assert not result.changed
    fixed = re.sub(r"\b(\w+) : \w+ = @\w+", attribute, body)  # the same with the value that the caller gives
    assert run_checked(FoldPad(), parse(text.replace(body, fixed)), 0.0).changed


@pytest.mark.parametrize("body", ["p = local.Pad(x, pads) y = Conv(p, w)", "p = Pad(x, pads) y = local.Conv(p, w)"])
def test_functions_of_the_same_names_are_others(body: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[1,1,4,4] x) => (float[A,B,C,D] y) <{WEIGHT}, {ONES}> {{ {body} }}
        <domain: "local", opset_import: ["" : 17]> Pad (x, pads) => (y) {{ y = Neg(x) }}
        <domain: "local", opset_import: ["" : 17]> Conv (x, w) => (y) {{ n = Neg(w) y = Conv(x, n) }}"""
    assert not run_checked(FoldPad(), parse(text), 0.0).changed
