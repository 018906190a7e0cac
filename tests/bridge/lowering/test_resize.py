"""Resize and Upsample in all modes."""

import numpy as np
import pytest
import torch
from onnx import TensorProto

from onnxqat.bridge.functional import shape_math
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.lowering.resize import scaled_size
from onnxqat.errors import UnsupportedError
from tests.bridge import lowering_checks, one_node, parity
from tests.torch_releases import since_2_7

RANDOM = np.random.default_rng(0)
NONE = np.zeros(0, np.float32)
CONSTANT = ("roi", "scales", "sizes")
COORDINATES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
SCALES = [[0.5, 0.6], [2.0, 3.3], [1.0, 0.8], [1.7, 1.0]]


def image(height=5, width=7, batch=1):
    return RANDOM.standard_normal((batch, 2, height, width)).astype(np.float32)


def scaled(x, scales, **options):
    inputs = {"x": x, "roi": NONE, "scales": np.array([1, 1, *scales], np.float32)}
    kind = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.uint8): TensorProto.UINT8}[x.dtype]
    return one_node.make("Resize", inputs, outputs={"y": kind}, constants=CONSTANT, opset=19, **options), {"x": x}


def sized(x, sizes, **options):
    inputs = {"x": x, "roi": NONE, "scales": NONE, "sizes": np.array(sizes)}
    return one_node.make("Resize", inputs, constants=CONSTANT, opset=19, **options), {"x": x}


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("scales", SCALES, ids=str)
def test_scales_equal_the_reference(mode, coordinates, scales) -> None:
    model, inputs = scaled(image(), scales, mode=mode, coordinate_transformation_mode=coordinates)
    if coordinates != "align_corners":  # onnxruntime rounds the length of the result first
        parity.check(model, inputs)
    # With a factor of 3.3 a position lies between two elements up to the rounding of float32, and ONNX's reference
    # computes in float64. With half_pixel_symmetric it also takes the wrong neighbours of a position that is one
    # float64 above a whole number. onnxruntime decides alone then.
    if coordinates != "half_pixel_symmetric" and not (mode == "nearest" and 3.3 in scales):
        lowering_checks.equals_reference(model, inputs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("coordinates", ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric"])
@pytest.mark.parametrize("size", [5, 7, 8, 13])
def test_the_nearest_element_is_that_of_onnxruntime(coordinates, size) -> None:
    """Also where a position is halfway between two, up to the rounding of float32."""
    x = np.arange(size, dtype=np.float32).reshape(1, 1, 1, size)
    for scale in (0.3, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.25, 1.5, 1.7, 2.0, 2.2, 3.0, 3.3):
        parity.check(*scaled(x, [1.0, scale], mode="nearest", coordinate_transformation_mode=coordinates))


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("exclude", [0, 1])
@pytest.mark.parametrize("scales", SCALES, ids=str)
def test_antialiasing_equals_the_reference(mode, exclude, scales) -> None:
    options = {"mode": mode, "exclude_outside": exclude, "antialias": 1}
    for made in (scaled(image(), scales, **options), sized(image(), [1, 2, 3, 4], **options)):
        lowering_checks.equals_reference(*made, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("sizes", [[3, 4], [9, 8], [5, 9], [2, 20]], ids=str)
def test_sizes_that_keep_the_aspect_ratio_equal_the_reference(policy, mode, sizes) -> None:
    options = {"keep_aspect_ratio_policy": policy, "mode": mode, "axes": [2, 3]}
    lowering_checks.equals_reference(*sized(image(), sizes, **options), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("sizes", [[1, 4], [6, 5]], ids=str)
def test_cropping_equals_the_reference(mode, sizes) -> None:
    inputs = {
        "x": image(),
        "roi": np.array([0, 0, 0.1, -0.2, 1, 1, 0.7, 1.3], np.float32),
        "scales": NONE,
        "sizes": np.array([1, 2, *sizes]),
    }
    options = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 1.5, "opset": 19}
    for constants in ((), CONSTANT):
        model = one_node.make("Resize", inputs, mode=mode, constants=constants, rank=4, **options)
        lowering_checks.equals_reference(model, inputs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("scales", SCALES, ids=str)
def test_bytes_are_rounded_once_and_saturate(mode, scales) -> None:
    x = RANDOM.integers(0, 2, (1, 2, 5, 7)).astype(np.uint8) * 255
    lowering_checks.equals_reference(*scaled(x, scales, mode=mode), rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [[1.0, 2.0], [1.5, 2.5], [3.0, 1.0]], ids=str)
def test_upsample_equals_onnxruntime(mode, scales) -> None:
    x = image()
    old = one_node.make("Upsample", {"x": x}, opset=7, mode=mode, scales=[1.0, 1.0, *scales])
    parity.check(old, {"x": x})
    inputs = {"x": x, "scales": np.array([1, 1, *scales], np.float32)}
    for constants in ((), ("scales",)):
        model = one_node.make("Upsample", inputs, opset=9, mode=mode, constants=constants, rank=4)
        parity.check(model, one_node.feeds(model, inputs))


@pytest.mark.parametrize(
    "options", [{"antialias": 1}, {"exclude_outside": 1}, {"keep_aspect_ratio_policy": "not_larger"}], ids=str
)
@since_2_7
def test_resize_exports_and_has_gradients(options) -> None:
    inputs = {"x": image(batch=2), "roi": NONE, "scales": None, "sizes": None}
    if "keep_aspect_ratio_policy" in options:
        inputs |= {"scales": NONE, "sizes": np.array([4, 5])}
        options = options | {"axes": [2, 3]}
    else:
        inputs |= {"scales": np.array([1, 1, 0.5, 0.6], np.float32)}
    options = options | {"opset": 19, "mode": "cubic", "constants": CONSTANT}
    lowering_checks.exports("Resize", inputs, {"x": (0, 2, 3)}, inputs | {"x": image(9, 8, 3)}, **options)
    gradient = lowering_checks.gradients(one_node.make("Resize", inputs, **options), inputs)[0]
    assert torch.isfinite(gradient).all()
    assert gradient.abs().sum() > 0


def test_the_size_of_the_result_is_computed_in_float32() -> None:
    for size in range(1, 400):
        for wanted in range(1, 60, 7):
            scale = float(np.float32(wanted / size))
            assert scaled_size(size, scale) == int(np.floor(shape_math.single(size * scale)))


def test_what_the_standard_does_not_define_is_refused() -> None:
    for options, reason in (
        ({"mode": "nearest", "antialias": 1}, "antialias of mode nearest"),
        ({"mode": "area"}, "mode area"),
        ({"coordinate_transformation_mode": "tf_crop_and_resize"}, "without roi"),
    ):
        model, _ = scaled(image(), [2.0, 2.0], **options)
        with pytest.raises(UnsupportedError, match=reason):
            to_torch(model)
