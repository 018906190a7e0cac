"""RoiAlign, MaxRoiPool and NonMaxSuppression."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto

from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.lowering import roi
from tests.bridge import lowering_checks, one_node, parity
from tests.repetitions import pairs
from tests.torch_releases import since_2_7

RANDOM = np.random.default_rng(0)


def regions(count=6, images=2, height=7, width=8):
    """Boxes inside, across and outside of the image, large and small."""
    boxes = (RANDOM.random((count, 4)) * 14 - 3).astype(np.float32)
    boxes[:, 2:] = boxes[:, :2] + (RANDOM.random((count, 2)) * 10).astype(np.float32)
    x = RANDOM.standard_normal((images, 3, height, width)).astype(np.float32)
    return {"x": x, "rois": boxes, "images": RANDOM.integers(0, images, count)}


@pytest.mark.parametrize("version", [10, 16, 21])
@pytest.mark.parametrize("ratio", [0, 1, 3])
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
def test_roi_align_equals_onnxruntime(version, ratio, mode, coordinates) -> None:
    inputs = regions()
    options = {} if version < 16 else {"coordinate_transformation_mode": coordinates}
    for scale in (1.0, 0.5):
        model = one_node.make(
            "RoiAlign",
            inputs,
            opset=version,
            mode=mode,
            sampling_ratio=ratio,
            spatial_scale=scale,
            output_height=2,
            output_width=3,
            **options,
        )
        parity.check(model, inputs)


def test_roi_align_is_the_same_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = regions(count=9)
    model = one_node.make("RoiAlign", inputs, opset=16, output_height=2, output_width=2)
    whole = parity.run_module(to_torch(model), inputs)[0]
    monkeypatch.setattr(roi, "CHUNK", 1)
    np.testing.assert_allclose(parity.run_module(to_torch(model), inputs)[0], whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("operator", ["RoiAlign", "MaxRoiPool"])
def test_no_region_gives_no_result(operator) -> None:
    inputs = regions() | {"rois": np.zeros((0, 4 if operator == "RoiAlign" else 5), np.float32)}
    if operator == "RoiAlign":
        inputs |= {"images": np.zeros(0, np.int64)}
        model = one_node.make(operator, inputs, opset=16, output_height=2, output_width=2)
    else:
        del inputs["images"]
        model = one_node.make(operator, inputs, opset=13, pooled_shape=[2, 2])
    assert parity.run_module(to_torch(model), inputs)[0].shape == (0, 3, 2, 2)


@pytest.mark.parametrize(("ratio", "mode"), pairs([0, 2], ["avg", "max"]))
@since_2_7
def test_roi_align_exports(ratio, mode) -> None:
    axes = {"x": (0, 2, 3), "rois": (0,), "images": (0,)}
    other = regions(4, 3, 9, 6)
    options = {"opset": 16, "mode": mode, "sampling_ratio": ratio, "output_height": 2, "output_width": 2}
    lowering_checks.exports("RoiAlign", regions(), axes, other, **options)


def pooled_regions(count=5, images=2, height=7):
    x = RANDOM.standard_normal((images, 3, height, 8)).astype(np.float32)
    rois = np.concatenate([RANDOM.integers(0, images, (count, 1)), RANDOM.integers(0, 9, (count, 4))], 1)
    return {"x": x, "rois": rois.astype(np.float32)}


@pytest.mark.parametrize("scale", [1.0, 0.5, 0.7])
@pytest.mark.parametrize("shape", [[1, 1], [2, 3], [4, 4]], ids=str)
def test_max_roi_pool_equals_onnxruntime(scale, shape) -> None:
    inputs = pooled_regions()
    parity.check(one_node.make("MaxRoiPool", inputs, opset=13, pooled_shape=shape, spatial_scale=scale), inputs)


def test_max_roi_pool_exports() -> None:
    axes = {"x": (0, 2), "rois": (0,)}
    lowering_checks.exports(
        "MaxRoiPool", pooled_regions(), axes, pooled_regions(3, 3, 9), opset=13, pooled_shape=[2, 3]
    )


def test_pooled_regions_have_finite_gradients() -> None:
    for operator, inputs, options in (
        ("RoiAlign", regions(), {"opset": 16}),
        ("MaxRoiPool", pooled_regions(), {"opset": 13, "pooled_shape": [2, 3]}),
    ):
        gradient = lowering_checks.gradients(one_node.make(operator, inputs, **options), inputs)[0]
        assert torch.isfinite(gradient).all()
        assert gradient.abs().sum() > 0


def suppression(inputs: dict[str, np.ndarray | None], **options: object) -> onnx.ModelProto:
    return one_node.make("NonMaxSuppression", inputs, outputs={"y": TensorProto.INT64}, rank=2, **options)


@pytest.mark.parametrize("centered", [0, 1])
@pytest.mark.parametrize("limit", [None, 0, 3, 100])
@pytest.mark.parametrize("score", [None, 0.4])
@pytest.mark.parametrize("overlap", [0.0, 0.3, 1.0])
def test_non_max_suppression_equals_onnxruntime_in_order(centered, limit, score, overlap) -> None:
    """Few distinct scores and coordinates, so that there are ties and overlaps of exactly the threshold."""
    inputs = {
        "boxes": np.round(RANDOM.random((2, 30, 4)) * 6).astype(np.float32) / 2,
        "scores": np.round(RANDOM.random((2, 3, 30)) * 6).astype(np.float32) / 6,
        "limit": None if limit is None else np.array([limit]),
        "overlap": np.array([overlap], np.float32),
        "score": None if score is None else np.array([score], np.float32),
    }
    given = {name: array for name, array in inputs.items() if array is not None}
    for opset in (10, 11):
        model = suppression(inputs, opset=opset, center_point_box=centered)
        found = parity.run_module(to_torch(model), given)[0]
        np.testing.assert_array_equal(found, parity.session(model).run(None, given)[0])


def test_non_max_suppression_without_candidates_selects_nothing() -> None:
    inputs = {
        "boxes": np.zeros((1, 4, 4), np.float32),
        "scores": np.zeros((1, 2, 4), np.float32),
        "limit": np.array([3]),
        "overlap": np.array([0.5], np.float32),
        "score": np.array([0.5], np.float32),
    }
    model = suppression(inputs, opset=11, constants=("limit", "overlap", "score"))
    assert to_torch(model)(*lowering_checks.tensors(model, inputs)).shape == (0, 3)
