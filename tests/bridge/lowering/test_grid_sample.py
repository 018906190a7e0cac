"""GridSample and AffineGrid."""

import numpy as np
import pytest
import torch
from onnx import TensorProto

from onnxqat.bridge.importing.importer import to_torch
from tests.bridge import lowering_checks, one_node, parity
from tests.repetitions import pairs

RANDOM = np.random.default_rng(0)


def images(rank, points=60):
    """Images and positions: at random, on whole and half elements, and far outside."""
    grid = RANDOM.random((2, *[1] * (rank - 1), points, rank)) * 6 - 3
    grid[..., : points // 2, :] = np.round(grid[..., : points // 2, :] * 20) / 20
    x = RANDOM.standard_normal((2, 2, *[4, 5, 3][:rank]))
    return {"x": x.astype(np.float32), "grid": grid.astype(np.float32)}


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_grid_sample_of_images_equals_onnxruntime(mode, padding, align) -> None:
    inputs = images(2)
    options = {"padding_mode": padding, "align_corners": align}
    parity.check(one_node.make("GridSample", inputs, opset=20, mode=mode, **options), inputs)
    old = mode if mode == "nearest" else f"bi{mode}"
    parity.check(one_node.make("GridSample", inputs, opset=16, mode=old, **options), inputs)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_grid_sample_of_volumes_equals_onnxruntime(mode, padding, align) -> None:
    inputs = images(3)
    options = {"padding_mode": padding, "align_corners": align}
    parity.check(one_node.make("GridSample", inputs, opset=20, mode=mode, **options), inputs)


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("padding", ["zeros", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_grid_sample_where_onnxruntime_has_none_equals_the_reference(rank, padding, mode) -> None:
    inputs = images(rank, points=12)
    model = one_node.make("GridSample", inputs, opset=20, mode=mode, padding_mode=padding)
    lowering_checks.equals_reference(model, inputs, rtol=1e-4, atol=1e-5)


def test_a_cubic_beyond_the_border_repeats_the_outermost_element_in_volumes_too() -> None:
    inputs = images(2)
    flat = one_node.make("GridSample", inputs, opset=20, mode="cubic", padding_mode="border")
    wanted = parity.run_module(to_torch(flat), inputs)[0]
    deep = {
        "x": np.repeat(inputs["x"][:, :, None], 3, 2),
        "grid": np.concatenate([inputs["grid"][:, None], np.zeros((2, 1, 1, 60, 1), np.float32)], -1),
    }
    volume = one_node.make("GridSample", deep, opset=20, mode="cubic", padding_mode="border")
    np.testing.assert_allclose(parity.run_module(to_torch(volume), deep)[0][:, :, 0], wanted, rtol=1e-4, atol=1e-5)


def test_integers_are_interpolated_as_floats_and_cut() -> None:
    inputs = images(2) | {"x": RANDOM.integers(-100, 100, (2, 2, 4, 5)).astype(np.int32)}
    model = one_node.make("GridSample", inputs, outputs={"y": TensorProto.INT32}, opset=20, mode="linear")
    floats = inputs | {"x": inputs["x"].astype(np.float64), "grid": inputs["grid"].astype(np.float64)}
    wide = one_node.make("GridSample", floats, outputs={"y": TensorProto.DOUBLE}, opset=20, mode="linear")
    found = parity.run_module(to_torch(model), inputs)[0]
    wanted = parity.run_module(to_torch(wide), floats)[0]
    assert np.abs(found - np.trunc(wanted)).max() <= 1  # the grids of the two differ in precision
    assert (found == np.trunc(wanted)).mean() > 0.99


def test_positions_that_are_no_numbers_do_not_crash() -> None:
    inputs = images(2)
    inputs["grid"][..., :3, :] = [np.nan, np.inf]
    for mode in ("nearest", "linear", "cubic"):
        model = one_node.make("GridSample", inputs, opset=20, mode=mode)
        assert parity.run_module(to_torch(model), inputs)[0].shape == (2, 2, 1, 60)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("rank", [2, 3])
def test_grid_sample_has_the_gradient_of_its_positions(mode, rank) -> None:
    inputs = {name: array[:1].astype(np.float64) for name, array in images(rank, points=4).items()}
    inputs["x"] = inputs["x"][:, :, :3, :3, ...]  # each element is moved twice, for each derivative
    inputs["grid"] *= 0.2
    model = one_node.make("GridSample", inputs, outputs={"y": TensorProto.DOUBLE}, opset=20, mode=mode)
    leaves = [t.requires_grad_() for t in lowering_checks.tensors(model, inputs)]
    assert torch.autograd.gradcheck(to_torch(model), leaves, atol=1e-4)


@pytest.mark.parametrize(("mode", "rank"), pairs(["nearest", "linear", "cubic"], [2, 3]))
def test_grid_sample_exports(mode, rank) -> None:
    axes = {"x": (0, *range(2, rank + 2)), "grid": (0, rank)}
    other = images(rank, 7)
    other = {"x": np.concatenate([other["x"], other["x"]], 2), "grid": other["grid"]}
    lowering_checks.exports("GridSample", images(rank, 5), axes, other, opset=20, mode=mode, padding_mode="reflection")


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [[2, 1, 3, 4], [2, 1, 1, 5], [2, 1, 3, 2, 4]], ids=str)
def test_affine_grid_equals_the_reference(align, size) -> None:
    rank = len(size) - 2
    theta = RANDOM.standard_normal((2, rank, rank + 1)).astype(np.float32)
    inputs = {"theta": theta, "size": np.array(size)}
    model = one_node.make("AffineGrid", inputs, opset=20, align_corners=align, constants=("size",))
    if 1 in size[2:] and align:  # the reference divides by 0 there
        found = parity.run_module(to_torch(model), one_node.feeds(model, inputs))[0]
        wanted = torch.affine_grid_generator(torch.from_numpy(theta), size, True)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    else:
        lowering_checks.equals_reference(model, inputs)


def test_affine_grid_exports() -> None:
    theta = RANDOM.standard_normal((3, 2, 3)).astype(np.float32)
    inputs = {"theta": theta, "size": np.array([3, 1, 4, 5])}
    other = inputs | {"theta": theta[:2]}
    lowering_checks.exports("AffineGrid", inputs, {"theta": (0,)}, other, opset=20, constants=("size",))
