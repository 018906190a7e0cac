"""Sums, products and curves on codes: tables give what formulas give."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx.numpy_helper import from_array as onnx_array

from onnxqat import to_torch
from onnxqat.arithmetic import Grid, create
from onnxqat.arithmetic._arrays import looked_up
from onnxqat.bridge.integer import pointwise
from onnxqat.bridge.integer.unit import Unit
from tests.bridge.integer.one_operator import between_pairs, check

GRIDS = (Grid(torch.tensor(0.0173), 3.0, 0, 255), Grid(torch.tensor(0.0311), -7.0, -128, 127))
OUTPUT = Grid(torch.tensor(0.0402), 97.0, 0, 255)


@pytest.mark.parametrize("kind", [pointwise.Sum, pointwise.Product])
def test_large_tensors_are_looked_up(kind: type[pointwise.Pair]) -> None:
    unit = kind(torch.add, (), (), None, create("onnxruntime"))
    rng = torch.Generator().manual_seed(0)
    a, b = ((torch.randint(g.low, g.high + 1, (16, 64, 128), generator=rng) - g.zero_point) * g.scale for g in GRIDS)
    a[0, 0, 0] = b[0, 0, 1] = torch.nan
    assert pointwise.tiles.helps((a, b), pointwise.LEAST)
    expected = unit.values(GRIDS, OUTPUT, a, b)
    torch.testing.assert_close(unit.in_torch(GRIDS, OUTPUT, a, b), expected, rtol=0, atol=0, equal_nan=True)
    assert int(expected.isnan().sum()) == 2
    assert len(expected.unique()) > 100


@pytest.mark.parametrize("operator", ["Sigmoid", "Tanh"])
def test_curves_as_in_the_default_session(operator: str) -> None:
    scales, zeros = ((0.05, 1 / 255), (128, 0)) if operator == "Sigmoid" else ((0.03, 1 / 127), (128, 128))
    model = between_pairs(f"{operator}(v)", "N, 400", scales=scales, zeros=zeros)
    check(model, np.random.default_rng(0).uniform(-5, 5, (50, 400)).astype(np.float32), operator)


def test_nan_has_the_smallest_code_in_a_table() -> None:
    table = torch.tensor([0.5, -0.5, -1.0])
    assert looked_up(table, torch.tensor([float("nan"), 1.0, 7.0])).tolist() == [0.5, -0.5, -1.0]
    assert looked_up(table.numpy(), np.array([np.nan, 1.0, 7.0], np.float32)).tolist() == [0.5, -0.5, -1.0]


def test_grids_with_an_axis_have_no_kernel_of_elements() -> None:
    model = between_pairs("Sigmoid(v)", "N, 2, 9")
    for name, values in (("s", [0.03, 0.05]), ("z", [128, 120])):
        old = next(i for i in model.graph.initializer if i.name == name)
        old.CopyFrom(onnx_array(np.array(values, np.float32 if name == "s" else np.uint8), name))
    for node in model.graph.node[:2]:
        node.attribute.add(name="axis", type=2, i=1)
    module = to_torch(model, arithmetic="onnxruntime")
    assert not any(isinstance(m, Unit) and m.sources for m in module.modules())
