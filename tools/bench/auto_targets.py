"""`auto` on scored networks, as a newcomer runs it: a float file, the samples and a target, and nothing else.

    python tools/bench/auto_targets.py run [--backend NAME ...] [--budget TIME] [--limit N] [--labels] [NETWORK ...]
    python tools/bench/auto_targets.py table

Without ``--backend`` all of :data:`TARGETS` are taken, without NETWORK all networks. Samples and scores are those of
`ptq_peers.py`: its file of calibration samples is all that `auto` gets, `--labels` adds the labels of its classifiers.
Each row has the metric of the float file, of `insert-qdq` on the same samples without an option, and of the file of
`auto`, with the agreement of their answers with those of the float model and the signal to noise of the first output,
what `auto` tried and chose, what it says that the file loses, and the seconds of wall and CPU time. Rows are kept in
runs/auto_targets/rows.jsonl, beside the files.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _shared
import ptq_peers

RUNS = _shared.ROOT / "runs" / "auto_targets"
TARGETS = ("onnxruntime-cpu", "openvino-cpu", "tensorrt", "tidl")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("networks", nargs="*", choices=[*ptq_peers.NETWORKS, []])
    run.add_argument("--backend", action="append", default=[])
    run.add_argument("--budget", default="10m")
    run.add_argument("--limit", type=int, help="score this many samples")
    run.add_argument("--labels", action="store_true", help="give the labels of the samples too")
    run.add_argument("--option", action="append", default=[], help="a further option of auto")
    run.add_argument("--minilm", type=Path, help="model.safetensors of all-MiniLM-L6-v2")
    commands.add_parser("table")
    arguments = parser.parse_args()
    if arguments.command == "table":
        print_table()
        return
    for network in arguments.networks or ptq_peers.NETWORKS:
        for backend in arguments.backend or TARGETS:
            print(json.dumps(row(network, backend, arguments)), flush=True)


def row(network: str, backend: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run `auto` and `insert-qdq` for one network and target, and score what they write."""
    _, task, count = ptq_peers.NETWORKS[network]
    source = ptq_peers.float_file(network, arguments.minilm)
    data = ptq_peers.calibration(network, task, count, source)
    plain, folder = RUNS / f"{network}.{backend}.plain.onnx", RUNS / f"{network}.{backend}.auto"
    RUNS.mkdir(parents=True, exist_ok=True)
    if not plain.exists():
        onnxqat("insert-qdq", source, "--replace", "--backend", backend, "--data", data, "-o", plain)
    if arguments.labels:
        data = labelled(task, data)
    began, used = time.monotonic(), _children()
    options = ("--budget", arguments.budget, "--restart", "--json", *arguments.option)
    said = onnxqat("auto", source, "--backend", backend, "--data", data, "-o", folder, *options)
    found = {
        "network": network,
        "backend": backend,
        "labels": arguments.labels,
        "budget": arguments.budget,
        "seconds": round(time.monotonic() - began),
        "cpu seconds": round(_children() - used),
        "plain": ptq_peers.compared(task, source, plain, arguments.limit),
        "auto": ptq_peers.compared(task, source, folder / "model.qdq.onnx", arguments.limit),
        "said": said,
    }
    with (RUNS / "rows.jsonl").open("a") as rows:
        rows.write(json.dumps(found) + "\n")
    return found


def onnxqat(command: str, *arguments: Any) -> dict[str, Any]:
    """What a command says as JSON; nothing for one that says text."""
    line = [sys.executable, "-m", "onnxqat", command, *map(str, arguments)]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(done.stdout + done.stderr)
    if "--json" not in arguments:
        return {}
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def labelled(task: str, data: Path) -> Path:
    """The samples of `data`, the first of the scorer's calibration split, with their labels."""
    path = data.with_suffix(".labels.npz")
    if path.exists():
        return path
    suite = _shared.scorer()
    with np.load(data) as archive:
        feeds = dict(archive)
    count = len(next(iter(feeds.values())))
    if task.startswith("cifar10"):
        labels = suite.cifar10("train", [1])[1]
    elif task.startswith("imagenet"):
        labels = suite.imagenet1000()[1][np.random.default_rng(0).permutation(1000)]
    elif task == "kws":
        with np.load(suite.DATA / "kws_mfcc_1000.npz") as archive:
            labels = archive["y"][np.random.default_rng(0).permutation(1000)]
    else:
        sys.exit(f"{task}: its samples have no labels")
    np.savez(path, **feeds, labels=labels[:count])
    return path


def _children() -> float:
    """CPU seconds of ended processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def print_table() -> None:
    """Print the newest row of each network, target and choice of labels."""
    path = RUNS / "rows.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    newest = {(found["network"], found["backend"], found["labels"]): found for found in rows}
    print("| Network | Backend | Labels | Float | n | insert-qdq | auto | Attempt | It says | Wall s | CPU s |")
    print("|" + "---|" * 11)
    for (network, backend, labels), found in sorted(newest.items()):
        said = found["said"]
        cells = [network, backend, "yes" if labels else "no", found["auto"]["float"], found["auto"]["n"]]
        for name in ("plain", "auto"):
            part = found[name]
            lost = round(part["float"] - part["metric"], 4)
            cells.append(", ".join(str(v) for v in (lost, part.get("agreement"), part["dB"]) if v is not None))
        cells += [said["chosen"], f"{said['drop']:.3g} {said['measure']}", found["seconds"], found["cpu seconds"]]
        print("| " + " | ".join(str(cell) for cell in cells) + " |")


if __name__ == "__main__":
    main()
