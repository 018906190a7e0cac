"""Preprocessing from an image file to a model input, stated in one readable line.

``resize=256,crop=224,rgb,scale=1/255,mean=0.485:0.456:0.406,std=0.229:0.224:0.225,layout=nchw``
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt

from onnxqat.data import preprocess_file, processor_config
from onnxqat.errors import UsageError

if TYPE_CHECKING:
    from PIL import Image

Colour = Literal["rgb", "bgr", "gray"]
Layout = Literal["nchw", "nhwc"]
Size: TypeAlias = "int | tuple[int, int] | Literal['model']"

_FILTERS = ("nearest", "bilinear", "bicubic", "lanczos")
_FLAGS: dict[str, tuple[str, object]] = {
    **{colour: ("colour", colour) for colour in get_args(Colour)},
    **{layout: ("layout", layout) for layout in get_args(Layout)},
    **{key: (key, "model") for key in ("resize", "crop", "letterbox")},
}


@dataclasses.dataclass(frozen=True)
class Preprocess:
    """The steps, in the order in which they are done.

    A size is a number, (height, width), or ``"model"``: what the model's input has.

    Attributes:
        colour: channels and their order; default: gray for a one-channel input, else rgb.
        resize: a number sets the shorter side and keeps the proportions; a pair sets both sides.
        letterbox: scale to fit into this size, proportions kept, and pad.
        align: where the letterboxed image lies.
        pad: grey value around it, 0 to 255.
        crop: cut this size out of the middle; what the image lacks is black.
        interpolation: how resize and letterbox sample; they smooth when they shrink, as Pillow and torchvision do.
        scale: factor of the pixel values 0 to 255.
        mean: subtracted after scaling, one number or one per channel.
        std: divided by after that.
        layout: order of the axes; default: where the input's 1, 3 or 4 channels are, else nchw.
        file: Python file, or name of an entry point, whose function does it all instead
            (:mod:`onnxqat.data.preprocess_file`); the other steps are not looked at.
    """

    colour: Colour | None = None
    resize: Size | None = None
    letterbox: Size | None = None
    align: Literal["center", "topleft"] = "center"
    pad: int = 114
    crop: Size | None = None
    interpolation: str = "bilinear"
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: Layout | None = None
    file: str = ""

    @property
    def plain(self) -> bool:
        """True if pixel values stay the integers 0 to 255."""
        return self.scale == 1 and set(self.mean) == {0.0} and set(self.std) == {1.0}


def parse(line: str) -> Preprocess:
    """The preprocessing of a `line` of comma-separated steps, of a file ``*.json`` or ``*.py``, or of an entry point.

    Raises:
        UsageError: ``option-invalid``, naming the key at fault and the legal ones; as of
            :func:`onnxqat.data.preprocess_file.function`.
    """
    if line.endswith(".json"):
        return Preprocess(**processor_config.read(Path(line)))
    if preprocess_file.is_named(line) and line not in _FLAGS:
        preprocess_file.function(line)
        return Preprocess(file=line)
    return parse_steps(line)


def parse_steps(line: str) -> Preprocess:
    """The preprocessing of a `line` of steps, which names no file: that of a stranger, in which a file would be run.

    Raises:
        UsageError: ``option-invalid``, naming the key at fault and the legal ones.
    """
    fields: dict[str, object] = {}
    for item in filter(None, (part.strip() for part in line.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        key = key.lower()
        field, parsed = _item(key, value) if equals else _flag(key)
        if field in fields:
            raise _invalid(f"{item!r} sets {field} a second time")
        fields[field] = parsed
    if "resize" in fields and "letterbox" in fields:
        raise _invalid("'resize' and 'letterbox' exclude each other")
    return Preprocess(**cast(dict[str, Any], fields))


def line(steps: Preprocess) -> str:
    """The line that :func:`parse` turns into `steps`; what is as by default is left out."""
    if steps.file:
        return steps.file
    words: list[str] = []
    for field in dataclasses.fields(steps):
        value = getattr(steps, field.name)
        if value == field.default:
            continue
        if field.name in ("colour", "layout"):
            words.append(str(value))
        elif isinstance(value, tuple):
            sizes = field.name in ("resize", "crop", "letterbox")
            words.append(f"{field.name}={'x'.join(map(str, value)) if sizes else ':'.join(map(_fraction_text, value))}")
        else:
            words.append(f"{field.name}={_fraction_text(value) if isinstance(value, float) else value}")
    return ",".join(words)


def _fraction_text(number: float) -> str:
    """`number` as a short fraction where that is the same float, such as 1/255; else in full."""
    short = Fraction(number).limit_denominator(1000)
    fraction = f"{short.numerator}/{short.denominator}"
    return (
        fraction
        if short.denominator > 1 and _parsed_number(fraction) == number and len(fraction) < len(repr(number))
        else repr(number)
    )


def _flag(key: str) -> tuple[str, object]:
    if key in _FLAGS:
        return _FLAGS[key]
    if key in _PARSERS:
        raise _invalid(f"{key!r} needs a value: {key}={_PARSERS[key][1]}")
    raise _unknown(key)


def _item(key: str, value: str) -> tuple[str, object]:
    if key not in _PARSERS:
        raise _unknown(key)
    parser, example = _PARSERS[key]
    try:
        return {"color": "colour", "size": "resize"}.get(key, key), parser(value)
    except (ValueError, ZeroDivisionError):
        raise _invalid(f"{key}={value!r} is not valid; an example: {key}={example}") from None


def _unknown(key: str) -> UsageError:
    legal = sorted({*_PARSERS, *_FLAGS})
    close = difflib.get_close_matches(key, legal, n=1)
    suggestion = f"; did you mean {close[0]!r}?" if close else ""
    return _invalid(f"unknown key {key!r}{suggestion}", hint=f"legal keys: {', '.join(legal)}")


def _invalid(reason: str, hint: str = "") -> UsageError:
    return UsageError("option-invalid", f"preprocessing line: {reason}", hint=hint)


def _parsed_number(text: str) -> float:
    return float(Fraction(text)) if "/" in text else float(text)


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(_parsed_number(part) for part in text.split(":"))


def _scale(text: str) -> float:
    return _positive((_parsed_number(text),))[0]


def _positive(values: tuple[float, ...]) -> tuple[float, ...]:
    if not all(0 < value < float("inf") for value in values):
        raise ValueError(values)
    return values


def _size(text: str) -> Size:
    if text == "model":
        return "model"
    sides = [int(side) for side in text.lower().split("x")]
    if not 1 <= len(sides) <= 2 or min(sides) < 1:
        raise ValueError(text)
    return sides[0] if len(sides) == 1 else (sides[0], sides[1])


def _pad(text: str) -> int:
    if not 0 <= int(text) <= 255:
        raise ValueError(text)
    return int(text)


def _one_of(*choices: str) -> Callable[[str], str]:
    def parser(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(text)
        return text.lower()

    return parser


_PARSERS: dict[str, tuple[Callable[[str], object], str]] = {
    "align": (_one_of("center", "topleft"), "center"),
    "color": (_one_of(*get_args(Colour)), "rgb"),
    "colour": (_one_of(*get_args(Colour)), "rgb"),
    "crop": (_size, "224 or 224x320 (height x width)"),
    "interpolation": (_one_of(*_FILTERS), "bilinear"),
    "layout": (_one_of(*get_args(Layout)), "nchw"),
    "letterbox": (_size, "640 or 480x640 (height x width)"),
    "mean": (_numbers, "0.485:0.456:0.406"),
    "pad": (_pad, "114"),
    "resize": (_size, "256 (shorter side) or 224x320 (height x width)"),
    "scale": (_scale, "1/255"),
    "std": (lambda text: _positive(_numbers(text)), "0.229:0.224:0.225"),
}


@dataclasses.dataclass(frozen=True)
class Placed:
    """Position of an image in a sample; sizes are (width, height) in pixels.

    Attributes:
        inner: size of the whole image after scaling.
        corner: (x, y) of its upper left corner in the sample; negative where the sample is cut out of it.
        size: of the sample.
    """

    inner: tuple[int, int]
    corner: tuple[int, int]
    size: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class ImageTransform:
    """A :class:`Preprocess` with the model's input filled in: turns an image into one sample, without batch axis.

    Attributes:
        steps: what to do, `colour` and `layout` known.
        size: height and width of the model's input; None where it is dynamic.
        dtype: of the result.
    """

    steps: Preprocess
    size: tuple[int | None, int | None]
    dtype: np.dtype[Any]

    @staticmethod
    def of(steps: Preprocess, shape: Sequence[int | str | None], dtype: npt.DTypeLike) -> ImageTransform:
        """Fill in layout, colour and size from an input's `shape` (rank 4) and `dtype`.

        Raises:
            UsageError: ``option-invalid``: mean or std do not fit the channels, an integer input is to be normalised.
        """
        if steps.file:
            return ImageTransform(steps, (None, None), np.dtype(dtype))
        layout = steps.layout or ("nhwc" if shape[1] not in (1, 3, 4) and shape[3] in (1, 3, 4) else "nchw")
        channels, height, width = (shape[1], *shape[2:]) if layout == "nchw" else (shape[3], *shape[1:3])
        colour = steps.colour or ("gray" if channels == 1 else "rgb")
        steps = dataclasses.replace(steps, colour=colour, layout=layout)
        depth = 1 if colour == "gray" else 3
        for name, values in (("mean", steps.mean), ("std", steps.std)):
            if len(values) not in (1, depth):
                raise _invalid(f"{name} has {len(values)} values for {depth} channels ({colour})")
        if np.dtype(dtype).kind != "f" and not steps.plain:
            raise _invalid(f"scale, mean and std do not fit an input of type {np.dtype(dtype)}")
        size = (height if isinstance(height, int) else None, width if isinstance(width, int) else None)
        return ImageTransform(steps, size, np.dtype(dtype))

    def __call__(self, image: Image.Image) -> npt.NDArray[Any]:
        """Shape (C, H, W) or (H, W, C), of the model's dtype.

        Raises:
            UsageError: ``option-invalid``: a size is to be the model's, which is dynamic; ``extension-failed``: a file's
                function raised, or gave something else than a sample.
        """
        steps = self.steps
        if steps.file:
            return preprocess_file.sample(steps.file, image, self.dtype)
        image = self._fit(image.convert("L" if steps.colour == "gray" else "RGB"))
        pixels = np.asarray(image)
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
        if steps.colour == "bgr":
            pixels = pixels[:, :, ::-1]
        if not steps.plain:
            pixels = pixels.astype(np.float32) * np.float32(steps.scale)
            pixels = (pixels - np.asarray(steps.mean, np.float32)) / np.asarray(steps.std, np.float32)
        if steps.layout == "nchw":
            pixels = pixels.transpose(2, 0, 1)
        return np.ascontiguousarray(pixels, self.dtype)

    def placed(self, width: int, height: int) -> Placed:
        """Return the position of an image of this size in the sample.

        Raises:
            UsageError: ``option-invalid``: a size is to be the model's, which is dynamic; a file's function knows it alone.
        """
        steps = self.steps
        if steps.file:
            text = f"where {steps.file} puts an image is not known, so no box can follow it"
            raise UsageError("option-invalid", text, hint="give the steps, as in letterbox=640, to score boxes")
        if steps.letterbox is not None:
            high, wide = self._sides(steps.letterbox)
            ratio = min(high / height, wide / width)
            inner = (max(1, round(width * ratio)), max(1, round(height * ratio)))
            corner = ((wide - inner[0]) // 2, (high - inner[1]) // 2) if steps.align == "center" else (0, 0)
            return Placed(inner, corner, (wide, high))
        inner = (width, height)
        if isinstance(steps.resize, int):
            side, shorter = steps.resize, min(width, height)
            inner = (side * width // shorter, side * height // shorter)
        elif steps.resize is not None or (steps.crop is None and None not in self.size):
            high, wide = self._sides(steps.resize or "model")
            inner = (wide, high)
        if steps.crop is None:
            return Placed(inner, (0, 0), inner)
        high, wide = self._sides(steps.crop)
        return Placed(inner, (-round((inner[0] - wide) / 2), -round((inner[1] - high) / 2)), (wide, high))

    def _fit(self, image: Image.Image) -> Image.Image:
        from PIL import Image

        steps, place = self.steps, self.placed(*image.size)
        if place.inner != image.size:
            image = image.resize(place.inner, Image.Resampling[steps.interpolation.upper()])
        if steps.letterbox is not None:
            pad = steps.pad
            canvas = Image.new(image.mode, place.size, pad if image.mode == "L" else (pad, pad, pad))
            canvas.paste(image, place.corner)
            return canvas
        if steps.crop is not None:
            left, top = -place.corner[0], -place.corner[1]
            image = image.crop((left, top, left + place.size[0], top + place.size[1]))
        return image

    def _sides(self, size: Size) -> tuple[int, int]:
        if isinstance(size, int):
            return size, size
        if isinstance(size, tuple):
            return size
        height, width = self.size
        if height is None or width is None:
            raise _invalid("the model's input has no fixed height and width; give the size, as in resize=224x224")
        return height, width
