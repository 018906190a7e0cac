"""Top-1 of the float file, its QDQ file, and the QDQ file executed in integers alone, by three ways to requantize.

    python tools/bench/integer_accuracy.py [--images N] [--steps N] [dscnn] [resnet8] [resnet20] [mobilenetv1] ...

``qdq`` is onnxruntime's default session of the file of ``onnxruntime-cpu`` with ``--integer all``; ``onnxruntime`` and
``fixed-point`` execute it in integers, with the float multipliers of onnxruntime's kernels, and with multipliers of 31 bits
and shifts. The second row of a network is a file of ``tidl``, one scale that is a power of two for each tensor, before and
after fine-tuning against the float file's outputs: ``shift`` executes it with shifts alone. ``in_float`` counts operators
that are not executed in integers.
"""

from __future__ import annotations

import argparse
import json
import sys
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
}
BATCH = 25


class Scored:
    """Test samples of a network, of which each file gets its share of right answers in percent."""

    def __init__(self, task: str, images: int) -> None:
        suite = _shared.scorer()
        calibration, test, labels = suite.split(task)
        prepare = suite.PREPROCESS[task]
        self.calibration = np.asarray(prepare(calibration[:256]))
        self.test, self.labels = np.asarray(prepare(test[:images])), np.asarray(labels[:images])
        self.name = ""

    def _percent(self, answers: list[np.ndarray]) -> float:
        return round(100 * float((np.concatenate(answers) == self.labels).mean()), 2)

    def _batches(self) -> list[dict[str, np.ndarray]]:
        return [{self.name: self.test[start : start + BATCH]} for start in range(0, len(self.test), BATCH)]

    def in_session(self, path: Path) -> float:
        """Top-1 in onnxruntime's default session."""
        session = integer_equality.session(str(path))
        self.name = session.get_inputs()[0].name
        return self._percent([session.run(None, feeds)[0].argmax(1) for feeds in self._batches()])

    def in_integers(self, path: Path, arithmetic: str) -> tuple[float, int]:
        """Top-1 in integers, and how many operators compute in float."""
        import onnxqat

        model = onnxqat.to_integer(path, arithmetic=arithmetic)
        answers = [next(iter(model.run(feeds).outputs.values())).argmax(1) for feeds in self._batches()]
        return self._percent(answers), len(model.float_operators())


def print_rows(network: str, images: int, steps: int) -> None:
    """Print the two rows of a network."""
    import onnxqat
    from onnxqat.placement.table_overrides import Overrides

    model, task = NETWORKS[network]
    source = _shared.MODELS / f"{model}.onnx"
    scored = Scored(task, images)
    common = {"network": network, "n": len(scored.test), "float": scored.in_session(source)}
    data = {scored.name: scored.calibration}
    file, shifts, tuned = (RUNS / f"{network}_{kind}.onnx" for kind in ("free", "shift", "shift_tuned"))
    onnxqat.insert_qdq(
        source, "onnxruntime-cpu", calibration=data, output=file, overrides=Overrides(integer="all"), batch_size=BATCH
    )
    free: dict[str, Any] = {"qdq": scored.in_session(file)}
    for arithmetic in ("onnxruntime", "fixed-point"):
        free[arithmetic], free["in_float"] = scored.in_integers(file, arithmetic)
    print(json.dumps(common | free), flush=True)
    onnxqat.insert_qdq(
        source, "tidl", calibration=data, output=shifts, overrides=Overrides(integer="all"), batch_size=BATCH
    )
    powers: dict[str, Any] = {"qdq": scored.in_session(shifts)}
    powers["shift"], powers["in_float"] = scored.in_integers(shifts, "shift")
    onnxqat.finetune(shifts, data, teacher=source, max_steps=steps, batch_size=BATCH, output=tuned)
    powers["tuned_qdq"] = scored.in_session(tuned)
    powers["tuned_shift"], _ = scored.in_integers(tuned, "shift")
    print(json.dumps(common | {"backend": "tidl"} | powers), flush=True)


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []])
    parser.add_argument("--images", type=int, default=1000, help="test samples, as far as there are so many")
    parser.add_argument("--steps", type=int, default=200, help="fine-tuning steps of the file of powers of two")
    arguments = parser.parse_args()

    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    RUNS.mkdir(parents=True, exist_ok=True)
    for network in arguments.networks or NETWORKS:
        print_rows(network, arguments.images, arguments.steps)


if __name__ == "__main__":
    main()
