"""Accuracy of the float file, its QDQ file, and the QDQ file executed in integers alone, by three ways to requantize.

    python tools/bench/integer_accuracy.py [--images N] [--steps N] [dscnn] [resnet8] [resnet20] [mobilenetv1] ...
    python tools/bench/integer_accuracy.py --images 16 --steps 0 --fast nanodet yolox

``qdq`` is onnxruntime's default session of the file of ``onnxruntime-cpu`` with ``--integer all``; ``onnxruntime`` and
``fixed-point`` execute it in integers, with the float multipliers of onnxruntime's kernels, and with multipliers of 31 bits
and shifts. The second row of a network is a file of ``tidl``, one scale that is a power of two for each tensor, before and
after fine-tuning against the float file's outputs: ``shift`` executes it with shifts alone. ``in_float`` counts operators
that are not executed in integers. Figures are top-1 in percent, of detectors mAP (0.50 to 0.95) in percent; detectors are
calibrated on the last images of COCO's 128, and scored on the first.
"""

from __future__ import annotations

import abc
import argparse
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _shared
import integer_equality

RUNS = _shared.ROOT / "runs" / "integer_accuracy"
NETWORKS = {
    "dscnn": ("dscnn_kws_bn", "kws"),
    "mobilenetv1": ("mobilenetv1_025_vww", "vww"),
    "resnet8": ("resnet8_cifar10_bn", "cifar10-raw"),
    "resnet20": ("resnet20_cifar10_bn", "cifar10"),
    "mobilenetv2": ("mobilenetv2_imagenet_bn", "imagenet"),
    "efficientnet": ("efficientnet_lite0_imagenet", "imagenet-lite"),
    "yolox": ("yolox_nano_coco_416", "yolox"),
    "nanodet": ("nanodet_coco_320", "nanodet"),
}
DETECTORS = integer_equality.DETECTORS
BATCH = 25
CALIBRATION = 16
"""Images of COCO that detectors are calibrated on."""
Answers = list[np.ndarray]


class Scored(abc.ABC):
    """Test samples of a network, on which each file gets its score in percent.

    Attributes:
        batch: samples at a time, in calibration and training too.
        calibration: preprocessed samples that are not scored.
        test: preprocessed samples.
        name: of the network's input.
    """

    batch: int
    calibration: np.ndarray
    test: np.ndarray
    name = ""

    @abc.abstractmethod
    def percent(self, run: Callable[[np.ndarray], Answers]) -> float:
        """Score what `run` gives for batches of the test samples."""

    def in_session(self, path: Path) -> float:
        """Score of onnxruntime's default session."""
        session = integer_equality.session(str(path))
        self.name = session.get_inputs()[0].name
        return self.percent(lambda samples: session.run(None, {self.name: samples}))

    def in_integers(self, path: Path, arithmetic: str) -> tuple[float, int]:
        """Score in integers, and how many operators compute in float."""
        import onnxqat

        model = onnxqat.to_integer(path, arithmetic=arithmetic)
        found = self.percent(lambda samples: list(model.run({self.name: samples}).outputs.values()))
        return found, len(model.float_operators())


class Classified(Scored):
    """Samples with a class each."""

    batch = BATCH

    def __init__(self, task: str, images: int) -> None:
        suite = _shared.scorer()
        calibration, test, labels = suite.split(task)
        prepare = suite.PREPROCESS[task]
        self.calibration = np.asarray(prepare(calibration[:256]))
        self.test, self.labels = np.asarray(prepare(test[:images])), np.asarray(labels[:images])

    def percent(self, run: Callable[[np.ndarray], Answers]) -> float:
        """Top-1."""
        starts = range(0, len(self.test), self.batch)
        answers = [run(self.test[start : start + self.batch])[0].argmax(1) for start in starts]
        return round(100 * float((np.concatenate(answers) == self.labels).mean()), 2)


class Detected(Scored):
    """Images with the objects that are in them."""

    batch = 1  # decoders of the scorer take one image

    def __init__(self, task: str, images: int) -> None:
        suite = self.suite = _shared.scorer()
        self.decode = suite.decode_yolox if task == "yolox" else suite.decode_nanodet
        found = list(suite.coco128())
        self.calibration = np.concatenate([suite.detector_input(task, each[0])[0] for each in found[-CALIBRATION:]])
        scored = found[: min(images, len(found) - CALIBRATION)]
        self.truth = [(classes, boxes) for _, classes, boxes in scored]
        self.placed = [suite.detector_input(task, image)[1:] for image, *_ in scored]
        self.test = np.concatenate([suite.detector_input(task, image)[0] for image, *_ in scored])

    def percent(self, run: Callable[[np.ndarray], Answers]) -> float:
        """Mean average precision, 0.50 to 0.95."""
        found = []
        for sample, (ratio, (left, top), size) in zip(self.test, self.placed, strict=True):
            boxes, scores = self.decode(run(sample[None]), size)
            found.append(self.suite.nms((boxes - [left, top, left, top]) / ratio, scores))
        return round(100 * float(self.suite.mean_ap(found, self.truth)["mAP50_95"]), 2)


def print_rows(network: str, images: int, steps: int, *, fast: bool) -> None:
    """Print the two rows of a network; with no `steps` the first alone."""
    import onnxqat
    from onnxqat.placement.table_overrides import Overrides

    model, task = NETWORKS[network]
    source = _shared.MODELS / f"{model}.onnx"
    scored = (Detected if network in DETECTORS else Classified)(task, images)
    common = {"network": network, "n": len(scored.test), "float": scored.in_session(source)}
    data = {scored.name: scored.calibration}
    file, shifts, tuned = (RUNS / f"{network}_{kind}.onnx" for kind in ("free", "shift", "shift_tuned"))
    made = functools.partial(
        onnxqat.insert_qdq,
        source,
        calibration=data,
        overrides=Overrides(integer="all"),
        batch_size=scored.batch,
        fast=fast,
        guard=not fast,
    )
    made("onnxruntime-cpu", output=file)
    free: dict[str, Any] = {"qdq": scored.in_session(file)}
    for arithmetic in ("onnxruntime", "fixed-point"):
        free[arithmetic], free["in_float"] = scored.in_integers(file, arithmetic)
    print(json.dumps(common | free), flush=True)
    if not steps:
        return
    made("tidl", output=shifts)
    powers: dict[str, Any] = {"qdq": scored.in_session(shifts)}
    powers["shift"], powers["in_float"] = scored.in_integers(shifts, "shift")
    onnxqat.finetune(shifts, data, teacher=source, max_steps=steps, batch_size=scored.batch, output=tuned)
    powers["tuned_qdq"] = scored.in_session(tuned)
    powers["tuned_shift"], _ = scored.in_integers(tuned, "shift")
    print(json.dumps(common | {"backend": "tidl"} | powers), flush=True)


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []])
    parser.add_argument("--images", type=int, default=1000, help="test samples, as far as there are so many")
    parser.add_argument(
        "--steps", type=int, default=200, help="fine-tuning steps of the file of powers of two; 0: none"
    )
    parser.add_argument("--fast", action="store_true", help="insert quantizers with --fast --no-guard")
    arguments = parser.parse_args()

    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    RUNS.mkdir(parents=True, exist_ok=True)
    for network in arguments.networks or NETWORKS:
        print_rows(network, arguments.images, arguments.steps, fast=arguments.fast)


if __name__ == "__main__":
    main()
