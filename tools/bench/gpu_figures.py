"""Measure on a GPU, in one run of at most 12 minutes: kernel bits, the cost of a training step, CIFAR-10 at low widths.

    python tools/bench/gpu_figures.py --output $OUT          # on the machine with the GPU
    python tools/bench/gpu_figures.py --dry --output DIR     # the same in small on a CPU, to see that it works
    python tools/bench/gpu_figures.py --score --output DIR   # afterwards, anywhere: accuracy in onnxruntime

Every part is a process of its own with a limit. What it found is appended to ``results.jsonl`` at once, so that a run that
is cut off has lost one part at most; a second run goes on with what is missing. ``--part`` runs some of them.

* ``bits``: the fused kernels against the reference on the same device, and forward against the CPU.
* ``step``: ResNet-50, W8A8 LSQ against float, batch 128, 224 x 224, channels_last, tf32 and bf16, eager and compiled.
* ``w4a4``, ``w3a3``, ``w2a2``: ResNet-20 from ``resnet20_cifar10_bn.onnx`` alone, by :mod:`cifar10_cuda_graph`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
SECONDS = {"w4a4": 80, "w3a3": 80, "w2a2": 110}
"""Training time of each width."""

LIMITS = {"bits": 60, "step": 260, "w4a4": 120, "w3a3": 120, "w2a2": 150}
"""Seconds after which a part is ended; they add up to less than 12 minutes."""


def commands(part: str, output: Path, dry: bool) -> list[str]:
    """The command of `part`."""
    if part == "bits":
        return [sys.executable, __file__, "--bits-here", *(["--dry"] if dry else [])]
    if part == "step":
        shared = ["--model", "resnet50", "--bits", "8,8", "--batch-norm", "keep"]
        full = ["--device", "cuda", "--batch", "128", "--precision", "tf32,bf16", "--mode", "eager,compiled"]
        small = ["--blocks", "1", "--size", "32", "--batch", "2", "--rounds", "2", "--precision", "float32,bf16"]
        return [sys.executable, str(FOLDER / "step_speed.py"), *shared, *(small if dry else full)]
    widths = f"{part[1]},{part[3]}"
    full = ["--seconds", str(SECONDS[part]), "--learning-rate", "1.2e-3"]
    small = ["--device", "cpu", "--seconds", "2", "--probe", "2", "--batch-size", "4", "--sheets", "1"]
    target = ["--bits", widths, "--output", str(output / f"{part}.onnx")]
    return [sys.executable, str(FOLDER / "cifar10_cuda_graph.py"), *target, *(small if dry else full)]


def run(part: str, output: Path, dry: bool) -> dict[str, Any]:
    """Run `part`: its lines of JSON, and how it ended."""
    began = time.perf_counter()
    log = output / f"{part}.log"
    with log.open("w") as stream:
        try:
            command = commands(part, output, dry)
            code: int | str = subprocess.run(
                command, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT, timeout=LIMITS[part], check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = "time limit"
    lines = log.read_text().splitlines()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    found = {"part": part, "ended": code, "seconds": round(time.perf_counter() - began, 1), "rows": rows}
    return found if code == 0 else {**found, "log": lines[-5:]}


def finished(results: Path) -> set[str]:
    """The parts that have ended well."""
    if not results.exists():
        return set()
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    return {row["part"] for row in rows if row["ended"] == 0}


def bits(dry: bool) -> None:
    """Compare the kernels on every case of the tests; prints one line."""
    import torch

    sys.path.insert(0, str(ROOT))
    from onnxqat.bridge.kernels import fastest, reference
    from tests.bridge.kernel_cases import assert_same_bits, cases, check

    device, failed, fused = "cpu" if dry else "cuda", [], 0
    for case in cases():
        there = case._replace(x=case.x.to(device), scale=case.scale.to(device), zero_point=case.zero_point.to(device))
        fused += fastest.fuses(there.x)
        try:
            check(fastest, there)
            assert_same_bits(fastest.fake_quantize(*there[1:]).cpu(), reference.fake_quantize(*case[1:]))
        except AssertionError as error:
            failed.append(f"{case.name}: {str(error)[:200]}")
    name = "cpu" if dry else torch.cuda.get_device_name()
    print(json.dumps({"device": name, "cases": len(list(cases())), "fused": fused, "failed": failed}), flush=True)
    sys.exit(bool(failed))


def score(output: Path) -> None:
    """Accuracies of the files of a run."""
    sys.path.insert(0, str(FOLDER))
    import cifar10_resnet20

    for part in SECONDS:
        if (output / f"{part}.onnx").exists():
            cifar10_resnet20.report(part, output / f"{part}.onnx")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--part", choices=tuple(LIMITS), action="append")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--score", action="store_true")
    parser.add_argument("--bits-here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bits_here:
        bits(arguments.dry)
        return
    if arguments.output is None:
        parser.error("--output is missing")
    if arguments.score:
        score(arguments.output)
        return
    arguments.output.mkdir(parents=True, exist_ok=True)
    results = arguments.output / "results.jsonl"
    for part in arguments.part or LIMITS:
        if part not in finished(results):
            line = json.dumps(run(part, arguments.output.resolve(), arguments.dry))
            print(line, flush=True)
            with results.open("a") as stream:
                stream.write(line + "\n")


if __name__ == "__main__":
    main()
