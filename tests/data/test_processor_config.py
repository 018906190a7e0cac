"""Preprocessing from the JSON of Hugging Face, timm and torchvision is the line that means the same."""

import json
from pathlib import Path
from typing import Any

import pytest

from onnxqat.data.preprocess import parse
from onnxqat.errors import UsageError

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
NORMAL = "scale=1/255,mean=0.485:0.456:0.406,std=0.229:0.224:0.225"
VIT = {
    "do_resize": True, "size": {"height": 224, "width": 224}, "resample": 2, "do_rescale": True,
    "rescale_factor": 0.00392156862745098, "do_normalize": True, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
}  # fmt: skip
CUT = {"do_center_crop": True, "crop_size": {"height": 224, "width": 224}, "size": {"shortest_edge": 256}}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (VIT, "resize=224x224,scale=1/255,mean=0.5:0.5:0.5,std=0.5:0.5:0.5"),
        ({**VIT, **CUT, "resample": 3, "image_mean": MEAN, "image_std": STD}, f"resize=256,crop=224,interpolation=bicubic,{NORMAL}"),
        ({**VIT, "size": {"shortest_edge": 224}, "crop_pct": 0.875, "image_mean": MEAN, "image_std": STD}, f"resize=256,crop=224,{NORMAL}"),
        ({**VIT, "do_normalize": False, "do_flip_channel_order": True}, "bgr,resize=224x224,scale=1/255"),
        ({"pretrained_cfg": {"input_size": [3, 224, 224], "crop_pct": 0.9, "interpolation": "bicubic", "mean": MEAN, "std": STD}},
         f"resize=248,crop=224,interpolation=bicubic,{NORMAL}"),
        ({"crop_size": [224], "resize_size": [232], "interpolation": "InterpolationMode.BILINEAR", "mean": MEAN, "std": STD},
         f"resize=232,crop=224,{NORMAL}"),
    ],
)  # fmt: skip
def test_a_file_means_what_its_line_means(tmp_path: Path, content: dict[str, Any], line: str) -> None:
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(content))
    assert parse(str(path)) == parse(line)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps({**VIT, "do_pad": True}), "do_pad"),
        (json.dumps({"input_size": [3, 8, 8], "mean": 0, "std": 1, "crop_mode": "squash"}), "squash"),
        (json.dumps({**VIT, "image_mean": None}), "preprocessing"),
        ("[1]", "no object"),
        ("{", "Expecting"),
        ('{"a": 1}', "none of the keys"),
    ],
)
def test_what_has_no_form_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        parse(str(path))
    with pytest.raises(UsageError, match="No such file"):
        parse(str(tmp_path / "absent.json"))
