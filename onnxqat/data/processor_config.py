"""Preprocessing as other libraries write it into JSON: processors of Hugging Face, timm's models, torchvision's presets.

Keys: ``transformers.BaseImageProcessor`` (``preprocessor_config.json``); ``timm.data.resolve_data_config``
(``pretrained_cfg`` of ``config.json``); ``torchvision.transforms._presets.ImageClassification`` (its attributes).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnxqat.errors import UsageError
from onnxqat.graph import files_read

LARGEST = 2**20
"""Bytes of such a file: a real one has some hundred."""
_RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Numbers of Pillow's filters, as Hugging Face writes them."""


def read(path: Path) -> dict[str, Any]:
    """Return the fields of a :class:`~onnxqat.data.preprocess.Preprocess` that the file states; a step that images have no form of here is refused.

    Raises:
        UsageError: ``option-invalid``, naming file and key.
    """
    try:
        files_read.note(path, "the preprocessing")
        if path.stat().st_size > LARGEST:
            raise _refused(path, "it is larger than 1 MB")
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _refused(path, str(error)) from None
    found = content.get("pretrained_cfg", content) if isinstance(content, dict) else None
    if not isinstance(found, dict):
        raise _refused(path, "it is no object of keys and values")
    try:
        if "image_mean" in found or "do_resize" in found or "do_rescale" in found:
            return _hugging_face(found)
        if "input_size" in found:
            return _timm(found)
        if "resize_size" in found or "crop_size" in found:
            return _torchvision(found)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise _refused(path, f"{error or type(error).__name__}") from None
    raise _refused(path, "none of the keys image_mean, input_size and resize_size is in it")


def _refused(path: Path, reason: str) -> UsageError:
    hint = (
        "give a preprocessor_config.json of Hugging Face, a config.json of timm, or a line such as resize=256,crop=224"
    )
    return UsageError("option-invalid", f"preprocessing: {path}: {reason}", hint=hint)


def _hugging_face(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of `Preprocess` for a `preprocessor_config.json` of Hugging Face's image processors."""
    if found.get("do_pad") or found.get("do_thumbnail"):
        raise ValueError("do_pad and do_thumbnail have no form here; letterbox may be what is meant")
    resize: int | tuple[int, int] | None = None
    crop: int | tuple[int, int] | None = None
    size, share = found.get("size"), found.get("crop_pct")
    if found.get("do_resize", True) and size is not None:
        resize = _size(size)
        if share and isinstance(resize, int):  # ConvNeXT: below 384 it is scaled up by the share, and cut
            resize, crop = (int(resize / share), resize) if resize < 384 else ((resize, resize), None)
    if found.get("do_center_crop") and found.get("crop_size") is not None:
        crop = _square(_size(found["crop_size"]))
    normal = found.get("do_normalize", True)
    return {
        "colour": "bgr" if found.get("do_flip_channel_order") else None,
        "resize": resize,
        "crop": crop,
        "interpolation": _RESAMPLE[int(found.get("resample", 2))],
        "scale": float(found.get("rescale_factor", 1 / 255)) if found.get("do_rescale", True) else 1.0,
        "mean": _numbers(found["image_mean"]) if normal else (0.0,),
        "std": _numbers(found["image_std"]) if normal else (1.0,),
    }


def _timm(found: Mapping[str, Any]) -> dict[str, Any]:
    if found.get("crop_mode", "center") != "center":
        raise ValueError(f"crop_mode is {found['crop_mode']!r}; center alone has a form here")
    channels, height, width = found["input_size"]
    share = float(found.get("crop_pct") or 0.875)
    square = height == width
    return {
        "colour": "gray" if channels == 1 else None,
        "resize": math.floor(height / share) if square else (math.floor(height / share), math.floor(width / share)),
        "crop": int(height) if square else (int(height), int(width)),
        "interpolation": _filter(found.get("interpolation", "bilinear")),
        "scale": 1 / 255,
        "mean": _numbers(found["mean"]),
        "std": _numbers(found["std"]),
    }


def _torchvision(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "resize": None if found.get("resize_size") is None else _size(found["resize_size"]),
        "crop": None if found.get("crop_size") is None else _square(_size(found["crop_size"])),
        "interpolation": _filter(found.get("interpolation", "bilinear")),
        "scale": 1 / 255,
        "mean": _numbers(found["mean"]),
        "std": _numbers(found["std"]),
    }


def _filter(name: Any) -> str:
    text = str(name).lower().rpartition(".")[2]
    if text not in _RESAMPLE.values():
        raise ValueError(f"interpolation is {name!r}")
    return text


def _size(given: Any) -> int | tuple[int, int]:
    """Return a number for the shorter side, or (height, width)."""
    if isinstance(given, Mapping):
        if "shortest_edge" in given and "longest_edge" not in given:
            return int(given["shortest_edge"])
        return int(given["height"]), int(given["width"])
    if isinstance(given, (list, tuple)):
        return int(given[0]) if len(given) == 1 else (int(given[0]), int(given[1]))
    return int(given)


def _square(size: int | tuple[int, int]) -> int | tuple[int, int]:
    return size[0] if isinstance(size, tuple) and size[0] == size[1] else size


def _numbers(given: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in (given if isinstance(given, (list, tuple)) else [given]))
