"""Other ranges for a quantizer: read from the histograms that calibration kept, observed anew where there are none."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser

from onnxqat.calibration import runner
from onnxqat.data import data, inputs
from onnxqat.insertion import ranges
from onnxqat.types import QType, TensorSpec

SPEC = TensorSpec(QType.of(8, signed=False), symmetric=False, granularity="tensor", axis=None, observer="auto")
TEXT = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N, 50] x) => (float[N, 50] y) { y = Relu(x) }"""


@pytest.fixture
def model() -> ir.Model:
    return ir.from_proto(parser.parse_model(TEXT))


def test_histograms_are_read_again_and_data_only_where_there_are_none(model: ir.Model) -> None:
    values, passes = np.random.default_rng(0).standard_normal((64, 50)).astype(np.float32), list[int]()

    def batches() -> Iterator[np.ndarray]:
        passes.append(1)
        yield from np.split(values, 4)

    source = data.open_data(batches, inputs.of_graph(model.graph))
    specs = {"x": SPEC, "y": SPEC}
    nothing = runner.Observed({}, (), 0)
    known = runner.calibrate(model, specs, source)
    del passes[:]
    read = ranges.observe(model, specs, source, known)
    assert not passes
    fresh = ranges.observe(model, specs, source, nothing)
    assert passes
    assert read.keys() == fresh.keys()
    for tensor in specs:
        found, wanted = (dict(ranges.of_activations({tensor: SPEC}, o)) for o in (read, fresh))
        assert found.keys() == wanted.keys() == {*ranges.CANDIDATES}
        assert all(found[name].same(wanted[name]) for name in found)
    other = dataclasses.replace(SPEC, observer="minmax")
    plain = ranges.observe(model, specs, source, runner.calibrate(model, {"x": other, "y": SPEC}, source))
    assert all(plain["x"][name].qparams().same(fresh["x"][name].qparams()) for name in ranges.CANDIDATES)


def test_masks_of_infinity_have_no_other_ranges(model: ir.Model) -> None:
    source = data.open_data([{"x": np.full((4, 50), -np.inf, np.float32)}], inputs.of_graph(model.graph))
    known = runner.calibrate(model, {"x": SPEC, "y": SPEC}, source)
    assert known.infinite == {"x"}
    assert ranges.observe(model, {"x": SPEC, "y": SPEC}, source, known).keys() == {"y"}


def test_tensors_of_one_scale_may_have_counted_for_unlike_grids(model: ir.Model) -> None:
    values = np.random.default_rng(0).standard_normal((64, 50)).astype(np.float32)
    source = data.open_data([values], inputs.of_graph(model.graph))
    signed = dataclasses.replace(SPEC, qtype=QType.of(8, signed=True), symmetric=True)
    unlike = ranges.observe(model, {"x": signed, "y": SPEC}, source, runner.Observed({}, (), 0))
    alike = ranges.observe(model, {"x": signed, "y": signed}, source, runner.Observed({}, (), 0))
    tied = {"x": signed, "y": signed}
    found, wanted = (dict(ranges.of_activations(tied, observers)) for observers in (unlike, alike))
    assert found.keys() == wanted.keys() == {*ranges.CANDIDATES}
    assert all(found[name].same(wanted[name]) for name in found)
