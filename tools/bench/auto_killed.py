"""`auto` killed at random moments: the folder holds a valid file each time, and later ones are no worse as `auto` judges.

    python tools/bench/auto_killed.py [--kills N] [--seed N] [--data FILE] [MODEL]

MODEL and FILE are those that `onnxqat demo` leaves in its folder. Each run goes on where the one before was killed, by
SIGKILL and with its children; the last one is left to end. After each kill the best file so far is checked by onnx, run by
onnxruntime, and compared with the float model on all samples of FILE: by the signal to noise of the first output, and by
answers. `auto` judges by what it holds out of them, so figures may fall by a little.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

BEST = "so_far.qdq.onnx"
FIRST, LAST = 2.0, 20.0
"""Seconds behind which a run is killed: before the first file is there, and while the network is trained."""


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=Path("model.onnx"))
    parser.add_argument("--data", type=Path, default=Path("data.npz"))
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    moments = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "auto"
        for number in range(arguments.kills):
            after = moments.uniform(FIRST, LAST)
            ended = run(arguments.model, arguments.data, folder, after)
            said = stated(folder / BEST, arguments.model, arguments.data)
            print(f"{number + 1:3}  {'ended' if ended else 'killed'} after {after:5.1f} s  {said}", flush=True)
        run(arguments.model, arguments.data, folder, None)
        files = sorted(path.name for path in folder.iterdir())
        print(f"left to end: {', '.join(files)}")


def run(model: Path, data: Path, folder: Path, after: float | None) -> bool:
    """Run `auto`, killed with all that it started `after` so many seconds; whether it ended before."""
    command = [sys.executable, "-m", "onnxqat", "auto", str(model), "--data", str(data), "-o", str(folder)]
    options = ["--bits", "2,2", "--target-drop", "0.1", "--budget", "60s"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, start_new_session=True)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(after)
    ended = process.poll() is not None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(0.5)
    return ended


def stated(best: Path, model: Path, data: Path) -> str:
    """Words about the best file so far: none, or its signal to noise in decibels."""
    if not best.exists():
        return "no file yet"
    onnx.checker.check_model(best, full_check=True)
    held = np.load(data)
    outputs = []
    for path in (model, best):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        outputs.append(session.run(None, {each.name: held[each.name] for each in session.get_inputs()})[0])
    wanted, found = (each.astype(np.float64) for each in outputs)
    ratio = 10 * np.log10(np.square(wanted).sum() / np.square(found - wanted).sum())
    return f"valid, {ratio:.2f} dB, {(wanted.argmax(1) == found.argmax(1)).mean():.1%} of the answers"


if __name__ == "__main__":
    main()
