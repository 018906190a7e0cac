"""ResNet-20 on CIFAR-10, 200 steps of batch 128 from a calibrated start, everything at its default.

    python tools/bench/cifar10_200_steps.py --bits 4,4
    python tools/bench/cifar10_200_steps.py --bits 4,4 --backend onnxruntime-cpu
    python tools/bench/cifar10_200_steps.py --bits 2,2 --batch-norm keep
    python tools/bench/cifar10_200_steps.py --bits 4,4 --accumulator-bits 16
    python tools/bench/cifar10_200_steps.py --bits 4,4 --backend onnxruntime-cpu --feature '*Relu_1_output_0'

``academic`` quantizes inputs and weights of convolutions and linear layers, the first and the last with 8 bits;
``onnxruntime-cpu`` every tensor, the network's input and the last layer included. Starts from
``resnet20_cifar10_bn.onnx`` alone, which is the teacher. Training images are seen once; accuracy is that of the scorer
in onnxruntime on the 10,000 test images. Options set what is at its default, to find better ones: with ``--held-out``
the score is that of 5,000 training images that are not trained on, so that the test images choose nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _shared
import cifar10_resnet20

HELD_OUT = 5000


def start(arguments: argparse.Namespace, calibrated_on: np.ndarray, output: Path) -> Path:
    """The calibrated QDQ file."""
    import onnxqat
    from onnxqat.cli._options import parse_bits
    from onnxqat.placement.table_overrides import Overrides

    weight_bits, activation_bits = parse_bits(arguments.bits)
    overrides = Overrides(
        weight_bits=weight_bits,
        activation_bits=activation_bits,
        first_last_bits=arguments.first_last_bits,
        observer=arguments.observer,
        accumulator_bits=arguments.accumulator_bits,
    )
    onnxqat.insert_qdq(
        cifar10_resnet20.FLOAT,
        arguments.backend,
        data={"input": calibrated_on},
        output=output,
        overrides=overrides,
        batch_norm=arguments.batch_norm,
        rounding=arguments.rounding,
    )
    return output


def accuracy(path: Path, images: np.ndarray, labels: np.ndarray) -> float:
    """Top-1 in percent, in onnxruntime without optimizations."""
    import onnx_ir as ir

    from onnxqat.runtime.session import Session

    session = Session(ir.load(path), optimize=False)
    found = [session.run({"input": images[i : i + 250]})["logits"].argmax(1) for i in range(0, len(images), 250)]
    return float((np.concatenate(found) == labels).mean() * 100)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="academic")
    parser.add_argument("--bits", default="4,4")
    parser.add_argument("--batch-norm", default="auto", choices=["auto", "fold", "keep"])
    parser.add_argument("--rounding", default="auto", choices=["auto", "nearest", "compensated"])
    parser.add_argument("--observer")
    parser.add_argument("--first-last-bits", type=int)
    parser.add_argument("--accumulator-bits", type=int, help="keep all sums within so many bits; both files are proved")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--options",
        default="{}",
        help='JSON object: arguments of onnxqat.finetune; those of its groups as in {"execution": {"precision": ...}}',
    )
    parser.add_argument("--loss", default="{}", help="JSON object: fields of Loss")
    parser.add_argument("--feature", nargs="*", default=[], metavar="NAME", help="inner tensors to compare, too")
    parser.add_argument("--feature-weight", type=float, default=1.0)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()

    import torch

    import onnxqat
    from onnxqat.training.config import DistillationConfig, ScoreConfig
    from onnxqat.training.objective.features import Features
    from onnxqat.training.objective.losses import Loss

    torch.set_num_threads(arguments.threads)
    scorer = _shared.scorer()
    images, labels = scorer.cifar10("train", range(1, 6))
    # What 200 steps see, and what is held out.
    order = np.random.default_rng(0).permutation(len(images) - HELD_OUT)[: arguments.steps * 128]
    seen = scorer.PREPROCESS["cifar10"](images[order])
    folder = cifar10_resnet20.RUNS
    folder.mkdir(parents=True, exist_ok=True)
    name = f"w{arguments.bits.replace(',', 'a')}_{arguments.backend}_{arguments.batch_norm}_{arguments.steps}"
    name += "" if arguments.accumulator_bits is None else f"_{arguments.accumulator_bits}"
    calibrated = start(arguments, seen[:512], folder / f"{name}_start.onnx")
    began = time.process_time()
    losses: list[float] = []
    options: dict[str, Any] = json.loads(arguments.options)
    groups = {"optimizer": onnxqat.OptimizerConfig, "schedule": onnxqat.ScheduleConfig, "execution": onnxqat.Execution}
    grouped = {k: groups[k](**v) if k in groups and isinstance(v, dict) else v for k, v in options.items()}
    features = Features(arguments.feature, weight=arguments.feature_weight) if arguments.feature else None
    result = onnxqat.finetune(
        calibrated,
        {"input": seen},
        teacher=DistillationConfig(cifar10_resnet20.FLOAT, features),
        batch_size=128,
        max_steps=arguments.steps,
        loss=Loss(**json.loads(arguments.loss)),
        device="cpu",
        output=folder / f"{name}.onnx",
        progress=lambda report: losses.append(report.loss),
        score=ScoreConfig(evaluate=lambda module: len(losses)),
        **grouped,
    )
    row: dict[str, Any] = {"run": name, "options": options, "steps": result.steps, "written": result.written}
    row["feature"] = arguments.feature
    row["losses"] = [round(float(np.mean(losses[i : i + 25])), 3) for i in range(0, len(losses), 25)]
    row |= {"limited_scales": result.limited_scales, "cpu_seconds": round(time.process_time() - began)}
    row["bits_any_input"] = [onnxqat.prove(path).bits for path in (calibrated, Path(result.model))]
    if arguments.held_out:
        held = scorer.PREPROCESS["cifar10"](images[-HELD_OUT:]), labels[-HELD_OUT:]
        row |= {"held_out_start": accuracy(calibrated, *held), "held_out": accuracy(Path(result.model), *held)}
    else:
        row["top1"] = _shared.figure(_shared.score("cifar10", Path(result.model)))
        print(json.dumps(row), flush=True)
        row["top1_unoptimized"] = _shared.figure(_shared.score("cifar10", Path(result.model), optimize=False))
        row["start"] = _shared.figure(_shared.score("cifar10", calibrated))
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
