"""Block-wise reconstruction of ResNet-20 on CIFAR-10: accuracy of nearest and of learned rounding.

    python tools/bench/cifar10_reconstruction.py --bits 2,4 --recipes qdrop,brecq,adaround --iterations 400

512 training images without labels; accuracies are those of the scorer in onnxruntime's default session.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _shared
import cifar10_resnet20

FLOAT = _shared.MODELS / "resnet20_cifar10.onnx"
RUNS = _shared.ROOT / "runs" / "cifar10_reconstruction"


def main() -> None:
    """Insert, reconstruct with each recipe, score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bits", default="2,4")
    parser.add_argument("--observer", default="mse")
    parser.add_argument("--recipes", default="qdrop,brecq,adaround")
    parser.add_argument("--iterations", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=0.02)
    given = parser.parse_args()

    import torch

    import onnxqat
    from onnxqat.cli._options import parse_bits
    from onnxqat.placement.table_overrides import Overrides

    torch.set_num_threads(1)
    weight_bits, activation_bits = parse_bits(given.bits)
    overrides = Overrides(weight_bits=weight_bits, activation_bits=activation_bits, observer=given.observer)
    data = {"input": cifar10_resnet20.calibration()}
    RUNS.mkdir(parents=True, exist_ok=True)
    start = RUNS / f"{given.bits.replace(',', '_')}_{given.observer}.qdq.onnx"
    onnxqat.insert_qdq(FLOAT, "academic", data=data, output=start, overrides=overrides)
    cifar10_resnet20.report(f"{given.bits} {given.observer}, nearest", start)
    for recipe in given.recipes.split(","):
        output = start.with_suffix(f".{recipe}.onnx")
        result = onnxqat.reconstruct(
            start,
            data,
            recipe=recipe,
            iterations=given.iterations,
            batch_size=given.batch_size,
            learning_rate=given.learning_rate,
            output=output,
        )
        kept = f"{sum(b.kept for b in result.blocks)} of {len(result.blocks)}"
        cifar10_resnet20.report(f"{given.bits}, {recipe}", output, seconds=round(result.seconds), kept=kept)


if __name__ == "__main__":
    main()
