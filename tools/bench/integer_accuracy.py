"""Accuracy of the float file, its QDQ file, and the QDQ file executed in integers alone, by three ways to requantize.

    python tools/bench/integer_accuracy.py [--images N] [--steps N] [dscnn] [resnet8] [resnet20] [mobilenetv1] ...
    python tools/bench/integer_accuracy.py --images 16 --steps 0 --fast nanodet yolox

``qdq`` is onnxruntime's default session of the file of ``onnxruntime-cpu`` with ``--integer all``; ``onnxruntime`` and
``fixed-point`` execute it in integers, with the float multipliers of onnxruntime's kernels, and with multipliers of 31 bits
and shifts, which round twice as TensorFlow Lite does by default, and as ``half-up`` once. The other rows of a network are a
file of ``tidl``, one scale that is a power of two for each tensor, before and after fine-tuning against the float file's
outputs: ``shift`` executes it with shifts alone. ``in_float`` names operators that are not executed in integers. Figures are
top-1 in percent, of detectors mAP (0.50 to 0.95) in percent; detectors are calibrated on the last images of COCO's 128, and
scored on the first.

``decibels`` is how far the outputs are from the float file's: unlike a score it tells one rounding from another on few
samples. ``against_qdq`` has the difference of scores and its standard error, over samples drawn anew with replacement.
"""

from __future__ import annotations

import abc
import argparse
import dataclasses
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

from onnxqat.arithmetic import Rounding

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
RESAMPLED = 200
"""Draws of the test samples behind a standard error."""
Answers = list[np.ndarray]
Run = Callable[[np.ndarray], Answers]


@dataclasses.dataclass(frozen=True)
class Score:
    """What a file answers on the test samples.

    Attributes:
        percent: the score.
        found: what is scored, one entry for each sample.
        outputs: of the network, each over all samples.
    """

    percent: float
    found: list[Any]
    outputs: Answers


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
    def found(self, outputs: Answers, first: int) -> list[Any]:
        """What is scored in the outputs of one batch, whose first sample is `first`."""

    @abc.abstractmethod
    def percent(self, found: list[Any], samples: np.ndarray) -> float:
        """Score of the samples with these numbers."""

    def score(self, run: Run) -> Score:
        """Score what `run` gives for batches of the test samples."""
        found, outputs = [], []
        for start in range(0, len(self.test), self.batch):
            outputs.append(run(self.test[start : start + self.batch]))
            found += self.found(outputs[-1], start)
        joined = [np.concatenate(parts) for parts in zip(*outputs, strict=True)]
        return Score(round(self.percent(found, np.arange(len(found))), 2), found, joined)

    def difference(self, reference: Score, other: Score) -> tuple[float, float]:
        """How much better `other` scores than `reference`, and the standard error of that."""
        draws = np.random.default_rng(0).integers(0, len(self.test), (RESAMPLED, len(self.test)))
        changes = [self.percent(other.found, each) - self.percent(reference.found, each) for each in draws]
        return round(other.percent - reference.percent, 2), round(float(np.std(changes)), 2)

    def in_session(self, path: Path) -> Score:
        """Score of onnxruntime's default session."""
        session = integer_equality.session(str(path))
        self.name = session.get_inputs()[0].name
        return self.score(lambda samples: session.run(None, {self.name: samples}))

    def in_integers(self, path: Path, arithmetic: str, rounding: Rounding | None = None) -> tuple[Score, list[str]]:
        """Score in integers, and the operators that compute in float."""
        import onnxqat

        model = onnxqat.to_integer(path, arithmetic=arithmetic, rounding=rounding)
        found = self.score(lambda samples: list(model.run({self.name: samples}).outputs.values()))
        return found, list(model.float_operators())


class Classified(Scored):
    """Samples with a class each."""

    batch = BATCH

    def __init__(self, task: str, images: int) -> None:
        suite = _shared.scorer()
        calibration, test, labels = suite.split(task)
        prepare = suite.PREPROCESS[task]
        self.calibration = np.asarray(prepare(calibration[:256]))
        self.test, self.labels = np.asarray(prepare(test[:images])), np.asarray(labels[:images])

    def found(self, outputs: Answers, first: int) -> list[Any]:
        """Whether each answer is right."""
        answers = outputs[0].argmax(1)
        return list(answers == self.labels[first : first + len(answers)])

    def percent(self, found: list[Any], samples: np.ndarray) -> float:
        """Top-1."""
        return 100 * float(np.asarray(found)[samples].mean())


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

    def found(self, outputs: Answers, first: int) -> list[Any]:
        """Boxes of one image."""
        ratio, (left, top), size = self.placed[first]
        boxes, scores = self.decode(outputs, size)
        return [self.suite.nms((boxes - [left, top, left, top]) / ratio, scores)]

    def percent(self, found: list[Any], samples: np.ndarray) -> float:
        """Mean average precision, 0.50 to 0.95."""
        measured = self.suite.mean_ap([found[each] for each in samples], [self.truth[each] for each in samples])
        return 100 * float(measured["mAP50_95"])


def decibels(reference: Score, other: Score) -> float:
    """Power of the outputs of `reference` over that of what `other` changes, the least of all outputs."""
    ratios = [
        float(np.square(ours).sum() / np.maximum(np.square(ours - theirs).sum(), np.finfo(np.float32).tiny))
        for ours, theirs in zip(reference.outputs, other.outputs, strict=True)
    ]
    return round(10 * float(np.log10(min(ratios))), 2)


def row(scored: Scored, exact: Score, qdq: Score, files: dict[str, Score]) -> dict[str, Any]:
    """Scores of several ways to execute a network, and what tells them apart from the float file and its QDQ file."""
    return {
        **{name: each.percent for name, each in files.items()},
        "decibels": {name: decibels(exact, each) for name, each in files.items()},
        "against_qdq": {name: scored.difference(qdq, each) for name, each in files.items() if each is not qdq},
    }


def print_rows(network: str, images: int, steps: int, *, fast: bool) -> None:
    """Print the three rows of a network; with no `steps` the first alone."""
    import onnxqat
    from onnxqat.placement.table_overrides import Overrides

    model, task = NETWORKS[network]
    source = _shared.MODELS / f"{model}.onnx"
    scored = (Detected if network in DETECTORS else Classified)(task, images)
    exact = scored.in_session(source)
    common = {"network": network, "n": len(scored.test), "float": exact.percent}
    data = {scored.name: scored.calibration}
    file, shifts, tuned = (RUNS / f"{network}_{kind}.onnx" for kind in ("free", "shift", "shift_tuned"))
    made = functools.partial(
        onnxqat.insert_qdq,
        source,
        data=data,
        overrides=Overrides(integer="all"),
        batch_size=scored.batch,
        fast=fast,
        guard=not fast,
    )
    made("onnxruntime-cpu", output=file)
    free = {"qdq": scored.in_session(file)}
    for arithmetic in ("onnxruntime", "fixed-point"):
        free[arithmetic], in_float = scored.in_integers(file, arithmetic)
    free["half-up"], _ = scored.in_integers(file, "fixed-point", "half-up")
    print(json.dumps(common | row(scored, exact, free["qdq"], free) | {"in_float": in_float}), flush=True)
    if not steps:
        return
    made("tidl", output=shifts)
    onnxqat.finetune(shifts, data, teacher=source, max_steps=steps, batch_size=scored.batch, output=tuned)
    for step, path in ((0, shifts), (steps, tuned)):
        powers = {"qdq": scored.in_session(path)}
        powers["shift"], in_float = scored.in_integers(path, "shift")
        powers_row = {"backend": "tidl", "steps": step, "in_float": in_float}
        print(json.dumps(common | powers_row | row(scored, exact, free["qdq"], powers)), flush=True)


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
