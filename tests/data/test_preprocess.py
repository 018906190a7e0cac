"""The preprocessing line and what it does to an image."""

import numpy as np
import pytest
from PIL import Image

from onnxqat.data.preprocess import ImageTransform, Preprocess, parse
from onnxqat.errors import UsageError

IMAGENET = "resize=256,crop=224,rgb,scale=1/255,mean=0.485:0.456:0.406,std=0.229:0.224:0.225,layout=nchw"


def image(height: int, width: int) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def test_line() -> None:
    assert parse(IMAGENET) == Preprocess(
        colour="rgb",
        resize=256,
        crop=224,
        scale=1 / 255,
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        layout="nchw",
    )
    assert parse(" bgr , letterbox = 480x640, align=topleft,pad=0,nhwc") == Preprocess(
        colour="bgr", letterbox=(480, 640), align="topleft", pad=0, layout="nhwc"
    )
    assert parse("resize,interpolation=bicubic") == Preprocess(resize="model", interpolation="bicubic")
    assert parse("") == Preprocess()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("resiz=3", "unknown key 'resiz'; did you mean 'resize'"),
        ("blur", "unknown key 'blur'"),
        ("resize=big", "resize='big' is not valid"),
        ("resize=0", "resize='0' is not valid"),
        ("crop=1x2x3", "crop='1x2x3' is not valid"),
        ("scale=1/0", "scale='1/0' is not valid"),
        ("std=0", "std='0' is not valid"),
        ("mean=a:b", "mean='a:b' is not valid"),
        ("pad=300", "pad='300' is not valid"),
        ("layout=chw", "layout='chw' is not valid"),
        ("mean", "'mean' needs a value"),
        ("rgb,bgr", "'bgr' sets colour a second time"),
        ("resize=3,letterbox=4", "exclude each other"),
    ],
)
def test_errors_name_the_key(line: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line)
    assert caught.value.code == "option-invalid"
    assert message in caught.value.message
    if "unknown" in message:
        assert "letterbox" in caught.value.hint


def test_as_torchvision_does_it() -> None:
    picture = image(300, 400)
    found = ImageTransform.of(parse(IMAGENET), (1, 3, 224, 224), "float32")(picture)
    resized = picture.resize((341, 256), Image.Resampling.BILINEAR).crop((58, 16, 282, 240))
    expected = (np.asarray(resized, np.float32) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(found, expected.transpose(2, 0, 1), atol=1e-5)
    assert found.dtype == np.float32


def test_model_decides_what_the_line_leaves_open() -> None:
    nhwc = ImageTransform.of(parse(""), ("N", 32, 48, 3), "uint8")(image(10, 10))
    assert (nhwc.shape, nhwc.dtype) == ((32, 48, 3), np.uint8)
    gray = ImageTransform.of(parse(""), ("N", 1, 32, 48), "float32")(image(10, 10))
    assert gray.shape == (1, 32, 48)
    as_it_is = ImageTransform.of(parse(""), ("N", 3, "h", "w"), "float16")(image(10, 12))
    assert (as_it_is.shape, as_it_is.dtype) == ((3, 10, 12), np.float16)
    with pytest.raises(UsageError, match="no fixed height"):
        ImageTransform.of(parse("resize"), ("N", 3, "h", "w"), "float32")(image(10, 12))


def test_bgr() -> None:
    rgb = ImageTransform.of(parse("rgb"), (1, 3, 8, 8), "float32")(image(8, 8))
    bgr = ImageTransform.of(parse("bgr"), (1, 3, 8, 8), "float32")(image(8, 8))
    np.testing.assert_array_equal(rgb[::-1], bgr)


@pytest.mark.parametrize(("align", "top"), [("center", 16), ("topleft", 0)])
def test_letterbox(align: str, top: int) -> None:
    white = Image.new("RGB", (64, 32), (255, 255, 255))
    found = ImageTransform.of(parse(f"letterbox,align={align}"), (1, 3, 64, 64), "float32")(white)
    inside = found[:, top : top + 32]
    assert (inside == 255).all()
    assert (found == 114).sum() == 3 * 32 * 64


def test_crop_beyond_the_image_is_black() -> None:
    found = ImageTransform.of(parse("crop=6"), (1, 3, 6, 6), "float32")(Image.new("RGB", (4, 4), (9, 9, 9)))
    assert found.sum() == 9 * 3 * 16


def test_line_that_does_not_fit_the_input() -> None:
    with pytest.raises(UsageError, match="mean has 3 values for 1 channels"):
        ImageTransform.of(parse("gray,mean=1:2:3"), (1, 1, 8, 8), "float32")
    with pytest.raises(UsageError, match="do not fit an input of type uint8"):
        ImageTransform.of(parse("scale=1/255"), (1, 3, 8, 8), "uint8")
