"""Diff: what two QDQ files differ in, whatever their form."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxqat.graph import io
from onnxqat.linting.diff import diff
from onnxqat.passes import _base
from onnxqat.passes.deploy_form import DeployForm
from tests.linting.qdq_files import WEIGHT, changed, model


def changes(first: onnx.ModelProto, second: onnx.ModelProto) -> dict[str, str]:
    return {d.tensor: d.change for d in diff(first, second).pairs}


def test_the_same_file() -> None:
    found = diff(model(), model())
    assert found.pairs == ()
    assert (found.same, found.quantizers, found.opsets) == (4, (4, 4), (21, 21))


def test_train_and_deploy_form_are_the_same() -> None:
    deploy = _base.run_passes(io.load(model()), [DeployForm()]).model
    assert diff(model(), deploy).pairs == ()


def test_scale_and_zero_point() -> None:
    found = diff(model(), changed(rs=np.float32(0.125), rz=np.uint8(3)))
    (pair,) = found.pairs
    assert (pair.tensor, pair.change) == ("r", "scale, zero point")
    assert pair.scale_ratio == (2.0, 2.0)
    assert pair.zero_points == 3
    assert pair.codes is None
    assert found.same == 3


def test_codes_of_a_weight() -> None:
    moved = WEIGHT.copy()
    moved[0, 0, 0, :2] += np.float32([0.01, 0.05])
    (pair,) = diff(model(), changed(w=moved)).pairs
    assert (pair.tensor, pair.change, pair.codes) == ("w", "codes", (2, 36, 5))


def test_types_and_granularity() -> None:
    wide = changed(z=np.uint16(120))
    assert changes(model(), wide)["x"] == "grid"
    whole = changed(ws=np.float32(0.01), wz=np.int8(0))
    (pair,) = [d for d in diff(model(), whole).pairs if d.tensor == "w"]
    assert pair.change == "granularity"
    assert pair.granularities == ("channel, axis 0", "tensor")


def test_placement() -> None:
    bare = changed(("rq = QuantizeLinear(r, rs, rz) y = DequantizeLinear(rq, rs, rz)", "y = Identity(r)"))
    assert changes(model(), bare) == {"r": "only in A"}
    assert changes(bare, model()) == {"r": "only in B"}
    twice = changed(
        ("t = Conv<pads=[1,1,1,1]>(xd, wd, bd)", "x2 = QuantizeLinear(x, s, z) x3 = DequantizeLinear(x2, s, z) "
         "t0 = Conv<pads=[1,1,1,1]>(xd, wd, bd) t = Add(t0, x3)")
    )  # fmt: skip
    assert changes(model(), twice) == {"x": "only in B"}


def test_names_of_files(tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    onnx.save(model(), path)
    assert diff(path, model()).models == (str(path), "B")


@pytest.mark.parametrize("size", [2, 3])
def test_scales_of_other_sizes(size: int) -> None:
    found = changed(ws=np.full(size, 0.01, np.float32), wz=np.zeros(size, np.int8))
    assert ("w" in changes(model(), found)) == (size == 3)
