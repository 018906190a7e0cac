"""Quantizers that a run switches on and off."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from onnxqat import numerics
from onnxqat.insertion import switchboard
from onnxqat.insertion.switchboard import Switchboard
from onnxqat.types import Placement, QParams, QType

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
CHAIN = f"{HEADER} g (float[N] x) => (float[N] y) {{ a = Neg(x) b = Abs(x) y = Add(a, b) }}"
IN_IF = f"""{HEADER} g (float[N] x, bool c) => (float[N] y) {{
    a = Neg(x)
    y = If(c) <then_branch = t () => (float[N] p) {{ b = Abs(a) p = Add(b, x) }},
               else_branch = e () => (float[N] q) {{ q = Identity(x) }}>
}}"""
BYTES, NIBBLES = QType("uint8", 0, 255), QType("uint8", 0, 15)


def quantizers(*tensors: str, qtype: QType = BYTES) -> list[Placement]:
    qparams = QParams(np.float32(0.3), np.int64(qtype.quant_max // 2), qtype)
    return [Placement(tensor, qparams, "r") for tensor in tensors]


@pytest.mark.parametrize("qtype", [BYTES, NIBBLES])
def test_a_quantizer_counts_while_it_is_on(qtype: QType) -> None:
    x = np.linspace(-2, 2, 9, dtype=np.float32)
    placements = quantizers("a", "y", qtype=qtype)
    board = Switchboard(ir.from_proto(parser.parse_model(CHAIN)), placements, "tensor", [{"x": x}])

    def grid(values: np.ndarray, parameters: QParams = placements[0].qparams) -> np.ndarray:
        return np.asarray(numerics.fake_quantize(values, parameters), np.float64)

    def share(y: np.ndarray) -> float:
        wanted = (np.abs(x) - x).astype(np.float64)
        return float(((y - wanted) ** 2).sum() / (wanted**2).sum())

    finer = QParams(np.float32(0.1), np.int64(7), qtype)
    assert board.outputs == ("y",)
    assert board.noise(()) == {"y": 0.0}
    assert board.noise([0])["y"] == pytest.approx(share(grid(-x) + np.abs(x)), rel=1e-6)
    assert board.noise([1])["y"] == pytest.approx(share(grid(np.abs(x) - x)), rel=1e-6)
    assert board.noise([0, 1])["y"] == pytest.approx(share(grid(grid(-x) + np.abs(x))), rel=1e-6)
    assert board.noise([0], {0: finer})["y"] == pytest.approx(share(grid(-x, finer) + np.abs(x)), rel=1e-6)
    assert board.runs == 6


@pytest.mark.parametrize(("text", "tensors"), [(CHAIN, ("x", "a", "y")), (IN_IF, ("x", "b", "y"))])
def test_a_quantizer_that_is_off_computes_nothing(text: str, tensors: tuple[str, ...]) -> None:
    """Hundreds of them would take longer than the network does."""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(parser.parse_model(text)))
    switched, wires = switchboard._switched(model, quantizers(*tensors), "tensor", {})
    assert len(wires) == len(tensors)
    pairs = {"QuantizeLinear", "DequantizeLinear"}
    found = [node for node in switched.graph.all_nodes() if node.op_type in pairs]
    assert len(found) == 2 * len(tensors)
    for node in found:
        assert node.graph is not None
        assert {n.op_type for n in node.graph} == pairs
    onnx.checker.check_model(ir.to_proto(switched), full_check=True)


def test_codes_of_16_bits_run_in_a_model_of_an_older_opset() -> None:
    """A round of the guard starts from the prepared model, whatever types the round before chose."""
    x, placements = np.float32([0.1, 0.4, 1.3]), quantizers("a", qtype=QType("uint16", 0, 65535))
    board = Switchboard(ir.from_proto(parser.parse_model(CHAIN)), placements, "tensor", [{"x": x}])
    assert board.noise([0])["y"] > 0


def test_a_constant_that_was_rounded_on_data_counts_as_the_file_has_it() -> None:
    text = f"{HEADER} g (float[4] x) => (float[4] y) <float[4] w = {{0.1, 0.4, 0.8, 1.3}}> {{ y = Mul(x, w) }}"
    x, w = np.float32([1, 2, 3, 4]), np.float32([0.1, 0.4, 0.8, 1.3])
    moved = np.float32([0.0, 0.6, 0.6, 1.5])
    placements = quantizers("w")
    board = Switchboard(ir.from_proto(parser.parse_model(text)), placements, "tensor", [{"x": x}], (), {"w": moved})
    finer = QParams(np.float32(0.1), np.int64(7), BYTES)

    def share(weight: np.ndarray) -> float:
        wanted = (x * w).astype(np.float64)
        return float(((x * weight - wanted) ** 2).sum() / (wanted**2).sum())

    assert board.noise(()) == {"y": 0.0}
    on_its_grid = numerics.fake_quantize(moved, placements[0].qparams)
    assert board.noise([0])["y"] == pytest.approx(share(on_its_grid), rel=1e-6)
    assert board.noise([0], {0: finer})["y"] == pytest.approx(share(numerics.fake_quantize(w, finer)), rel=1e-6)
