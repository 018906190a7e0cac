"""Noise of single quantizers at the outputs, from gradients."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser

from onnxqat.bridge import quantizer_noise
from onnxqat.bridge.switched_module import SwitchedModule

PAIR = """
    {x}_q = QuantizeLinear({x}, step, zero)
    {x}_d = DequantizeLinear({x}_q, step, zero)
"""
TWO_OUTPUTS = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[16,6] x, float[6,6] w) => (float[16,6] y, float[16,6] quiet)
<float step = {{0.25}}, uint8 zero = {{128}}, float[6,6] v = {{{", ".join(str(0.1 * (i % 7) - 0.3) for i in range(36))}}}>
{{ {PAIR.format(x="x")} a = MatMul(x_d, v) {PAIR.format(x="a")} b = Relu(a_d) {PAIR.format(x="b")}
   y = MatMul(b_d, w) quiet = Abs(x) }}"""
DIFFERENCES = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[1,1,1,16] x) => (float[1,1,1,15] y)
<float step = {{0.25}}, uint8 zero = {{128}}, float[1,1,1,2] v = {{1, -1}}>
{{ {PAIR.format(x="x")} y = Conv(x_d, v) }}"""


def samples(count: int) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(3)
    draw = lambda *shape: random.standard_normal(shape).astype(np.float32)  # noqa: E731
    return [{"x": 3 * draw(16, 6), "w": draw(6, 6)} for _ in range(count)]


def test_noise_is_what_each_quantizer_does_alone() -> None:
    switched = SwitchedModule(ir.from_proto(parser.parse_model(TWO_OUTPUTS)))
    batches = samples(40)
    found = quantizer_noise.of_each(switched, batches, outputs=["y"])
    assert set(found) == {"x", "a", "b"}
    for quantizer, module in switched.found:
        alone = []
        for feeds in batches:
            plain, rounded = (switched.run(feeds, on=on)[0]["y"].astype(np.float64) for on in ((), [module]))
            alone.append(((rounded - plain) ** 2).sum() / (plain**2).sum())
        assert found[quantizer.tensor] == pytest.approx(np.mean(alone), rel=0.3)


def test_parts_of_an_output_count_each_by_its_own_signal() -> None:
    switched = SwitchedModule(ir.from_proto(parser.parse_model(TWO_OUTPUTS)))
    batches = samples(40)
    for feeds in batches:
        feeds["w"][:, 0] *= 100  # the first column of y is all that its noise as a whole tells of
    first = np.zeros((16, 6), np.int64)
    first[:, 0] = 1
    found = quantizer_noise.of_each(switched, batches, outputs=["y"], parts=[{"y": first}] * len(batches))
    for quantizer, module in switched.found:
        alone = []
        for feeds in batches:
            plain, rounded = (switched.run(feeds, on=on)[0]["y"].astype(np.float64) for on in ((), [module]))
            parts = (plain[:, :1], rounded[:, :1]), (plain[:, 1:], rounded[:, 1:])
            alone.append(sum(((r - p) ** 2).sum() / (p**2).sum() for p, r in parts))
        assert found[quantizer.tensor] == pytest.approx(np.mean(alone), rel=0.3)


def test_outputs_that_are_not_asked_for_do_not_count() -> None:
    switched = SwitchedModule(ir.from_proto(parser.parse_model(TWO_OUTPUTS)))
    assert quantizer_noise.of_each(switched, samples(2), outputs=["quiet"]) == {"x": 0.0, "a": 0.0, "b": 0.0}


def test_errors_that_are_alike_cancel_where_the_network_takes_differences() -> None:
    """A plain image has the same error everywhere; counted by themselves, these errors would be noise."""
    switched = SwitchedModule(ir.from_proto(parser.parse_model(DIFFERENCES)))
    plain = np.full((1, 1, 1, 16), 0.1, np.float32)
    edge = plain.copy()
    edge[..., 8:] = 5.0
    (noise,) = quantizer_noise.of_each(switched, [{"x": edge}]).values()
    assert 0 < noise < 1e-3  # of one difference of fifteen: the edge
    uneven = edge + np.linspace(0, 0.2, 16, dtype=np.float32)
    (more,) = quantizer_noise.of_each(switched, [{"x": uneven}]).values()
    assert more > 2 * noise


def test_the_error_of_a_rounded_weight_is_against_what_it_was() -> None:
    switched = SwitchedModule(ir.from_proto(parser.parse_model(DIFFERENCES)))
    feeds = {"x": np.linspace(-2, 2, 16, dtype=np.float32).reshape(1, 1, 1, 16)}
    usual = quantizer_noise.of_each(switched, [feeds])["x"]
    none = quantizer_noise.of_each(switched, [feeds], weights={"x": switched.run(feeds, on=())[0]["y"]})["x"]
    assert none == usual  # another size: no value of this tensor
    exact = np.round(feeds["x"] / np.float32(0.25)) * np.float32(0.25)
    assert quantizer_noise.of_each(switched, [feeds], weights={"x": exact})["x"] == pytest.approx(0, abs=1e-12)
