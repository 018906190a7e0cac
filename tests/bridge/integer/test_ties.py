"""The codes of torch, numpy and onnxruntime on inputs that were searched for ties."""

import numpy as np
import pytest

import onnxqat
from tests.bridge.integer import networks
from tests.bridge.integer.ties import Hunt


@pytest.mark.parametrize("backend", ["onnxruntime-cpu", "vitis-dpu"])
def test_ties_fall_alike(backend: str) -> None:
    model = networks.quantized(networks.kinds(), networks.images(16), backend)
    hunt, start = Hunt.of(model), networks.images(8, 3)
    found = hunt.search(start)
    before, after = (int(hunt.counts(x).sum()) for x in (start, found))
    assert after > before + 40 if backend == "vitis-dpu" else after > before
    torch, numpy = (onnxqat.to_integer(model, engine=engine).run({"x": found}) for engine in ("torch", "numpy"))
    for name, codes in torch.codes.items():
        np.testing.assert_array_equal(codes, numpy.codes[name], err_msg=name)
    session = dict(zip(("logits", "shares"), networks.session(model, found), strict=True))
    for name, values in session.items():
        np.testing.assert_array_equal(torch.outputs[name], values, err_msg=name)


@pytest.mark.parametrize("rounding", ["half-even", "half-up", "half-away"])
def test_roundings_part_at_ties_alone(rounding: str) -> None:
    """Powers of two: a shift is exact, so that roundings differ at ties, and at the very same codes in both engines."""
    model = networks.quantized(networks.kinds(), networks.images(16), "vitis-dpu")
    hunt = Hunt.of(model)
    x = hunt.search(networks.images(4, 3))
    runs = [
        onnxqat.to_integer(model, arithmetic="shift", rounding=rounding, engine=engine).run({"x": x})  # type: ignore[arg-type]
        for engine in ("torch", "numpy")
    ]
    for name, codes in runs[0].codes.items():
        np.testing.assert_array_equal(codes, runs[1].codes[name], err_msg=name)
    usual = onnxqat.to_integer(model, arithmetic="shift", rounding="truncate").run({"x": x})
    apart = int(np.abs(runs[0].codes["first"] - usual.codes["first"]).max())
    assert apart == 1
