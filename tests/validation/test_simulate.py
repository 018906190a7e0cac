"""``simulate`` and ``to_integer``: a QDQ file executed in integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxqat
from onnxqat.arithmetic import Accumulator
from onnxqat.errors import CheckError, ModelError
from onnxqat.graph import io
from onnxqat.report import build_simulate, terminal
from onnxqat.runtime.session import Session
from onnxqat.validation import verdicts
from onnxqat.validation.parity import QuantizerParity
from tests.bridge.integer import networks


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return networks.quantized(networks.kinds(), networks.images())


def test_equal_to_the_default_session(model: onnx.ModelProto, tmp_path: Path) -> None:
    data = {"x": networks.images(8, 2)}
    found = onnxqat.simulate(model, data, codes=tmp_path / "codes.npz")
    assert [(o.output, o.differing) for o in found.outputs] == [("logits", 0), ("shares", 0)]
    assert all(o.written_db > 20 for o in found.outputs)
    assert found.kernels["Convolution"] == 3
    assert len(found.layers) == 4
    assert all(0 < layer.largest < 2 ** (layer.bits - 1) for layer in found.layers)
    text = terminal.to_text(build_simulate.from_simulate(found))
    assert "values unlike the default session" in text
    assert "largest sum" in text
    with np.load(tmp_path / "codes.npz") as archive:
        assert archive["first"].dtype == np.uint8
        written = Session(io.load(model), optimize=False, tensors=["first_QuantizeLinear_Output"]).run(
            data, ["first_QuantizeLinear_Output"]
        )
        assert np.mean(archive["first"] != written["first_QuantizeLinear_Output"]) < 0.01


@pytest.mark.parametrize("rounding", [None, "half-up", "truncate"])
def test_fixed_point_is_near(model: onnx.ModelProto, rounding: str | None) -> None:
    found = onnxqat.simulate(model, {"x": networks.images(8, 2)}, arithmetic="fixed-point", rounding=rounding)  # type: ignore[arg-type]
    assert all(o.default_db > (15 if rounding == "truncate" else 30) for o in found.outputs)
    assert sum(o.differing for o in found.outputs) > 0 or rounding != "truncate"


def test_narrow_accumulators(model: onnx.ModelProto) -> None:
    x = networks.images(8, 2)
    with pytest.raises(CheckError, match="16 bits hold 32767") as caught:
        onnxqat.simulate(model, {"x": x}, accumulator=Accumulator(16, "error"))
    assert caught.value.code == "accumulator-overflow"
    wide = onnxqat.to_integer(model).run({"x": x}).outputs["logits"]
    for overflow in ("wrap", "saturate"):
        narrow = onnxqat.to_integer(model, accumulator=Accumulator(16, overflow)).run({"x": x})  # type: ignore[arg-type]
        assert not np.array_equal(narrow.outputs["logits"], wide)


def test_shift_of_powers_of_two() -> None:
    model = networks.quantized(networks.kinds(), networks.images(), "vitis-dpu")
    found = onnxqat.to_integer(model, arithmetic="shift").run({"x": networks.images(4, 2)})
    floating = Session(io.load(model), optimize=False).run({"x": networks.images(4, 2)})
    assert np.corrcoef(found.outputs["logits"].ravel(), floating["logits"].ravel())[0, 1] > 0.999


def test_a_float_model_is_refused() -> None:
    with pytest.raises(ModelError, match="no quantizer to compute on codes"):
        onnxqat.to_integer(networks.kinds())


def test_validate_says_that_the_session_computes_these_integers(model: onnx.ModelProto) -> None:
    report = onnxqat.validate(networks.kinds(), model, {"x": networks.images(32, 3)})
    found = report.compared("torch-integers", "ort-default")
    assert [(c.output, c.unequal) for c in found] == [("logits", 0), ("shares", 0)]
    assert sum(c.unequal for c in report.compared("ort-default", "ort-plain")) > 0
    (parity,) = (v for v in report.verdicts if v.name == "parity")
    assert parity.status == "green"
    assert f"in integers, none of {found[0].elements + found[1].elements} values differ" in parity.reason
    codes = {q.tensor: q.differing_in_integers for q in report.quantizers}
    assert set(codes.values()) == {0}
    assert {"x", "first", "third", "gate", "sum", "windows", "mean"} <= codes.keys()
    assert f"and none of {sum(q.elements for q in report.quantizers)} codes in {len(codes)} tensors" in parity.reason


def test_validate_names_the_first_tensor_whose_codes_the_session_gives_otherwise() -> None:
    def parity(tensor: str, differing: int | None) -> QuantizerParity:
        return QuantizerParity(tensor, "uint8 0..255", "torch", 100, 0, 0, 0, 0, 0, differing, 0.0, 0.0, 0, 40.0)

    text = verdicts._codes([parity("a", 0), parity("b", None), parity("c", 3), parity("d", 1)])
    assert text == ", and 4 of 300 codes in 3 tensors, first in 'c'"
    assert verdicts._codes([parity("b", None)]) == ""


def test_codes_of_int8_files_are_those_of_the_kernels() -> None:
    """The optimizer of a session makes such tensors uint8; where it leaves layers in float, so are codes behind them."""
    model = networks.quantized(networks.kinds(), networks.images(), "tensorrt")
    report = onnxqat.validate(networks.kinds(), model, {"x": networks.images(8, 3)})
    found = [q.differing_in_integers for q in report.quantizers if q.differing_in_integers is not None]
    assert found
    assert sum(found) <= 8
