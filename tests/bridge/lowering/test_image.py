"""Col2Im and CenterCropPad."""

import numpy as np
import pytest
import torch
from onnx import TensorProto

from tests.bridge import lowering_checks, one_node, parity
from tests.torch_releases import since_2_7

RANDOM = np.random.default_rng(0)


def columns(image, block, *, strides, dilations, pads, batch=2):
    rank, blocks = len(image), 1
    for axis in range(rank):
        reach = image[axis] + pads[axis] + pads[axis + rank] - dilations[axis] * (block[axis] - 1) - 1
        blocks *= reach // strides[axis] + 1
    x = RANDOM.standard_normal((batch, 3 * int(np.prod(block)), blocks)).astype(np.float32)
    return {"x": x, "image": np.array(image), "block": np.array(block)}


FORMS = {
    "plain": {"image": [5, 6], "block": [2, 3], "strides": [1, 1], "dilations": [1, 1], "pads": [0] * 4},
    "strided": {"image": [5, 6], "block": [2, 3], "strides": [2, 1], "dilations": [1, 2], "pads": [0, 1, 0, 1]},
    "unequal pads": {"image": [5, 6], "block": [2, 2], "strides": [1, 2], "dilations": [2, 1], "pads": [2, 0, 1, 1]},
    "volume": {"image": [4, 3, 5], "block": [2, 1, 2], "strides": [1, 2, 1], "dilations": [1] * 3, "pads": [1] * 6},
    "dilated volume": {
        "image": [4, 4, 5],
        "block": [2, 2, 2],
        "strides": [1] * 3,
        "dilations": [2, 1, 2],
        "pads": [0, 1, 2, 1, 0, 0],
    },
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("constants", [(), ("image", "block")])
def test_col2im_equals_the_reference(form, constants) -> None:
    options = dict(FORMS[form])
    image, block = options.pop("image"), options.pop("block")
    inputs = columns(image, block, **options)
    model = one_node.make("Col2Im", inputs, opset=18, constants=constants, **options)
    lowering_checks.equals_reference(model, inputs)
    if len(image) == 2:  # onnxruntime places the blocks of volumes elsewhere than the standard says
        parity.check(model, one_node.feeds(model, inputs))
    gradient = lowering_checks.gradients(model, inputs)[0]
    assert torch.isfinite(gradient).all()


def test_col2im_exports() -> None:
    form = dict(FORMS["strided"])
    image, block = form.pop("image"), form.pop("block")
    given, other = columns(image, block, **form), columns(image, block, **form, batch=3)
    lowering_checks.exports("Col2Im", given, {"x": (0,)}, other, opset=18, constants=("image", "block"), **form)


@pytest.mark.parametrize("axes", [None, [1], [0, -1], [2, 0]], ids=str)
@pytest.mark.parametrize("sizes", [[7, 2, 5], [1, 1, 1], [4, 5, 6], [9, 8, 7]], ids=str)
@pytest.mark.parametrize("constants", [(), ("sizes",)])
def test_center_crop_pad_equals_onnxruntime(axes, sizes, constants) -> None:
    chosen = sizes if axes is None else sizes[: len(axes)]
    inputs = {"x": RANDOM.standard_normal((4, 5, 6)).astype(np.float32), "sizes": np.array(chosen)}
    model = one_node.make("CenterCropPad", inputs, opset=18, constants=constants, axes=axes, rank=3)
    parity.check(model, one_node.feeds(model, inputs))


def test_center_crop_pad_of_booleans() -> None:
    inputs = {"x": RANDOM.random((3, 4)) < 0.5, "sizes": np.array([2, 7])}
    model = one_node.make("CenterCropPad", inputs, outputs={"y": TensorProto.BOOL}, opset=18, rank=2)
    lowering_checks.equals_reference(model, inputs)


@since_2_7
def test_center_crop_pad_exports() -> None:
    given = {"x": RANDOM.standard_normal((3, 4, 5)).astype(np.float32), "sizes": np.array([6, 3])}
    other = given | {"x": RANDOM.standard_normal((2, 9, 5)).astype(np.float32)}
    lowering_checks.exports("CenterCropPad", given, {"x": (0, 1)}, other, opset=18, constants=("sizes",), axes=[1, 2])
