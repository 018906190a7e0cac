"""Write docs/backend_matrix.md: scored networks and structures of today through every compiler that is installed.

    python tools/backend_matrix.py                       # what is not in the state file yet, then the page
    python tools/backend_matrix.py --models resnet8_cifar10 --backends qnn-htp --scales exact --again
    python tools/backend_matrix.py --page                # only the page, from the state file

Networks without a task are structures with random weights: faults/compilers/nets.py beside the benchmark data makes them.
Each cell: insert-qdq with the backend's table (calibration data alone, no tuning), as it is and with ``--exact``, the
hand-off, and the score with the compiler's own numbers. It is kept in runs/backend_matrix.json as soon as it is known,
so that the tool may be stopped and started again. Rows that the state file does not have are taken over from the page with the date that stands there.
The data and the scorer are found by ONNXQAT_SHARED.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib.util
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "bench"))
import _shared

from onnxqat.backends import schema
from onnxqat.deployment import choice
from onnxqat.deployment.base_compiler import HEAVY, BaseCompiler
from onnxqat.deployment.handoff import handoff
from onnxqat.deployment.result import HandoffReport
from onnxqat.deployment.run.process import compile_in_process
from onnxqat.errors import QatError
from onnxqat.graph import io
from onnxqat.insertion.insert import insert_qdq
from onnxqat.placement.table_overrides import Overrides

PAGE = _shared.ROOT / "docs" / "backend_matrix.md"
STATE = _shared.ROOT / "runs" / "backend_matrix.json"
BACKENDS = ("onnxruntime-cpu", "openvino-cpu", "tensorrt", "qnn-htp", "rknn")
SCALES = ("table", "exact")
SIMULATORS = ("onnxruntime-qnn", "rknn-toolkit2")


@dataclasses.dataclass(frozen=True)
class Network:
    """A network: its file, the scorer's task, its float score, and samples for simulators and for processors.

    Without a task it is a structure, which has random weights and no score.
    """

    model: str
    task: str
    score: float
    simulated: int = 100
    calibration: int = 128
    limit: int = 1000
    fewer: bool = False
    """Calibrated on fewer samples than the tool's own."""


NETWORKS = (
    Network("resnet8_cifar10", "cifar10-raw", 87.19, 200),
    Network("dscnn_kws", "kws", 91.88, 200),
    Network("mobilenetv1_025_vww", "vww", 86.7, 128),
    Network("resnet20_cifar10", "cifar10", 91.73, 100),
    Network("resnet8_cifar10_bn", "cifar10-raw", 87.19, 200),
    Network("dscnn_kws_bn", "kws", 91.88, 200),
    Network("resnet20_cifar10_bn", "cifar10", 91.73, 100),
    Network("resnet20_cifar10_dynamo", "cifar10", 91.73, 100),
    Network("resnet20_cifar10_slim", "cifar10", 91.73, 100),
    Network("resnet56_cifar10_bn", "cifar10", 93.39, 60),
    Network("mobilenetv2_imagenet_bn", "imagenet", 84.11, 20, 64, 100),
    Network("efficientnet_lite0_imagenet", "imagenet-lite", 88.22, 20, 64, 100),
    Network("nanodet_coco_320", "nanodet", 0.284, 8, 32, 32),
    Network("yolox_nano_coco_416", "yolox", 0.343, 8, 32, 32),
    *(
        Network(name, "", 0.0, calibration=48)
        for name in ("espcn", "gru", "vit", "convnext", "unet", "llm", "detr", "rtdetr", "mnv4", "yolov8")
    ),
)

INTRODUCTION = """# Compiler results

Written by `tools/backend_matrix.py`: every scored network, quantized for each backend by calibration alone (8 bits, no \
tuning), handed to the backend's compiler. Networks without a score are structures of today in a small size, with random \
weights.

- **measured**: the day, with the defaults of that day's `insert-qdq`, and in brackets the number of samples it \
calibrated on where it was asked for fewer than the tool's own; *earlier defaults* are short scales, weights of 7 \
bits for x86 and ranges of the extremes, without rounding on data and without the guard. Free scales, today's, give \
other differences without `--exact`. In the summary † stands behind figures of earlier defaults. \
onnxruntime and OpenVINO choose kernels by the processor: days of December 2026 are of one with AVX-512 and VNNI.
- **heavy on integers**: of the nodes of {heavy} for which the compiler has an integer kernel at all, how many run on \
integers. What is without one, or stays float for another reason, is listed below the table.
- **LSB**: largest difference of an output from onnxruntime with optimizations off, in LSB of the output's \
quantizer, or in 1/255 of its range where it has none, over {samples} samples; in brackets the share of values more \
than 2 LSB off. Where TopK or NonMaxSuppression chose rows, they are matched, and behind the comma stands the \
difference in those that were chosen alike.
- **by itself**: the largest of what any node adds: its result against what onnxruntime makes of the inputs that the \
node had in the compiler, on two samples. Where this is 1 or 2, larger differences at the output are rounding that adds up. \
Behind a TopK it may be that of another row.
- **score**: the task's metric with the compiler's own numbers, and with onnxruntime's on the same samples. TensorRT \
runs no numbers without a GPU.
- **exact**: the same with `insert-qdq --exact`, see [Equal numbers](backends.md#equal-numbers).
"""
EARLIER = "earlier defaults"
SAMPLES = 8
LIMIT = 2.0
SUMMARY = """
## LSB from the reference

With the table's scales → with `--exact`; **bold** where no output value is more than 2 LSB off.
"""
WHY = """
Where more than 2 LSB are left with `--exact`:

- *tensorrt*: runs no numbers without a GPU.
- *EfficientNet-Lite0, MobileNetV2 and NanoDet*: with `--exact` the guard leaves 2 of 60, 2 of 64 and 4 to 8 of 94 heavy \
nodes in float. With earlier defaults, without it, these networks had 0.0 to 1.0.

*rknn*'s numbers are of RKNN-Toolkit2's simulator, with the file and the `optimization_level` that `handoff` gives it. \
Without them, outputs are 5 to 19 LSB off: where all zero points of a tensor are in the middle of the type it takes \
128/127 of the file's scale, and rounds weights again on it; at its default level the result of a pool of averages \
lies on the grid of its input.

A cell with one number was measured with one kind of scales. Pairs at input and output run on the CPU, as HTP's \
provider has it by default.
"""


def exported(name: str, folder: Path) -> tuple[Path, np.ndarray]:
    """The structure called `name` as an ONNX file in `folder`, and inputs for it."""
    import torch

    path = _shared.SHARED / "faults" / "compilers" / "nets.py"
    spec = importlib.util.spec_from_file_location("nets", path)
    if spec is None or spec.loader is None or not path.exists():
        sys.exit(f"{path} is missing; set ONNXQAT_SHARED to the folder with the benchmark data")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.D = str(_shared.SHARED / "data")
    network, data = module.get(name)
    (key, inputs), target = next(iter(data.items())), folder / f"{name}.onnx"
    example = (torch.from_numpy(inputs[:1]),)
    torch.onnx.export(network, example, str(target), dynamo=False, opset_version=17, input_names=[key])
    return target, inputs


def source(scorer: ModuleType, network: Network, folder: Path) -> tuple[Path, np.ndarray]:
    """The file of a network, exported to `folder` where it is a structure, and inputs to calibrate on."""
    if not network.task:
        path, inputs = exported(network.model, folder)
        return path, inputs[: network.calibration]
    return _shared.MODELS / f"{network.model}.onnx", calibration(scorer, network)


def calibration(scorer: ModuleType, network: Network) -> np.ndarray:
    """Inputs that are not scored: the task's own, or ImageNet images prepared as the task prepares its own."""
    from PIL import Image

    if network.task not in ("yolox", "nanodet", "vww"):
        found: np.ndarray = scorer.PREPROCESS[network.task](scorer.split(network.task)[0][: network.calibration])
        return found
    images = scorer.imagenet1000()[0][: 8 * network.calibration : 8]
    if network.task == "vww":
        small = [np.asarray(Image.fromarray(i).resize((96, 96), Image.Resampling.BILINEAR)) for i in images]
        return np.asarray(scorer.PREPROCESS["vww"](np.stack(small)))
    return np.concatenate([scorer.detector_input(network.task, Image.fromarray(i))[0] for i in images])


class Recorder:
    """Stands for the scorer's session: keeps what is fed, sample by sample, and answers with onnxruntime's numbers."""

    def __init__(self, session: Any, answers: list[dict[str, np.ndarray]] | None) -> None:
        self.session, self.fed, self.answers = session, [], iter(answers) if answers is not None else None
        self.names = [v.name for v in session.get_outputs()]

    def get_inputs(self) -> list[Any]:
        """As the session's."""
        inputs: list[Any] = self.session.get_inputs()
        return inputs

    def run(self, _: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Outputs of one batch, computed or taken from the compiler's answers."""
        rows = []
        for i in range(len(next(iter(feeds.values())))):
            one = {name: value[i : i + 1] for name, value in feeds.items()}
            if self.answers is None:
                self.fed.append(one)
                rows.append(self.session.run(None, one))
            else:
                answer = next(self.answers)
                rows.append([answer[name] for name in self.names])
        return [np.concatenate(parts) for parts in zip(*rows, strict=True)]


def scores(scorer: ModuleType, network: Network, model: Path, compiler: BaseCompiler, timeout: float) -> dict[str, Any]:
    """The task's metric with the compiler's numbers and with onnxruntime's, on the same samples."""
    limit = network.simulated if compiler.name in SIMULATORS else network.limit
    plain = scorer.session
    recorder = Recorder(plain(model, False), None)
    scorer.session = lambda *_: recorder
    try:
        reference = scorer.score(network.task, model, limit)
        result = compile_in_process(compiler, model, recorder.fed, timeout=timeout)
        replay = Recorder(recorder.session, list(result.outputs))
        scorer.session = lambda *_: replay
        found = scorer.score(network.task, model, limit)
    finally:
        scorer.session = plain
    return {"found": _shared.figure(found), "reference": _shared.figure(reference), "samples": len(recorder.fed)}


def key_of(network: Network, backend: str, scales: str) -> str:
    """What a cell is kept under."""
    return f"{network.model} {backend}" + (f" {scales}" if scales != "table" else "")


def cell(
    scorer: ModuleType, network: Network, backend: str, scales: str, given: tuple[Path, np.ndarray], timeout: float
) -> dict[str, Any]:
    """One network, its file and inputs, through one compiler, with the table's own scales or with ``--exact``."""
    path, inputs = given
    name = io.load(path).graph.inputs[0].name
    data = {str(name): inputs}
    compiler = choice.compiler_of(schema.load(backend), [])
    if compiler is None:
        return {"accepted": None, "error": "the compiler is not installed"}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="matrix-") as folder:
        quantized, bundle = Path(folder) / "model.qdq.onnx", Path(folder) / "bundle"
        found: dict[str, Any] = {"compiler": f"{compiler.name} {compiler.version()}"}
        try:
            overrides = Overrides(exact=scales == "exact")
            insert_qdq(path, backend=backend, data=data, output=quantized, overrides=overrides)
            report = handoff(quantized, backend, bundle, data=data, limit=SAMPLES, timeout=timeout)
            found |= judged(report, compiler)
            if compiler.runs_numbers and network.task:
                found["score"] = scores(scorer, network, bundle / "model.onnx", compiler, timeout)
        except QatError as error:
            found |= {"accepted": found.get("accepted", False), "error": error.message}
    found["date"] = datetime.datetime.now(datetime.UTC).date().isoformat()
    if network.fewer:
        found["date"] += f" ({len(inputs)})"
    return found | {"seconds": round(time.monotonic() - started)}


def judged(report: HandoffReport, compiler: BaseCompiler) -> dict[str, Any]:
    """Coverage, differences and float nodes of a hand-off."""
    kernels = compiler.integer_kernels.split()
    heavy = [n for n in report.nodes if n.op_type in HEAVY]
    able = [n for n in heavy if n.op_type in kernels or n.kind in ("integer", "moved")]
    apart = [n for n in report.nodes if n.steps is not None and n.steps > 2]
    return {
        "accepted": True,
        "integer": sum(n.kind in ("integer", "moved") for n in able),
        "able": len(able),
        "heavy": len(heavy),
        "float": [[n.name, n.op_type, n.why] for n in heavy if n.kind in ("float", "rejected")],
        "steps": max((c.largest_steps for c in report.outputs), default=None),
        "beyond": max((c.beyond for c in report.outputs), default=None),
        "rows": max((c.rows or 0 for c in report.outputs), default=0),
        "others": max((c.other_rows or 0 for c in report.outputs), default=0),
        "matched": max((c.matched_steps or 0.0 for c in report.outputs), default=0.0),
        "own": max((n.own_steps for n in report.nodes if n.own_steps is not None), default=None),
        "first_beyond": apart[0].name if apart else None,
    }


@dataclasses.dataclass(frozen=True)
class Former:
    """What a page that was written before says: for each backend its compiler, rows by network and reasons; a summary."""

    compilers: dict[str, str]
    rows: dict[str, dict[str, str]]
    reasons: dict[str, list[str]]
    summary: dict[str, list[str]]


def former(text: str) -> Former:
    """Read `text`, a page of this tool; rows without a date are of earlier defaults."""
    found, place = Former({}, {}, {}, {}), "summary"
    for line in text.splitlines():
        cells = [part.strip() for part in line.strip("|").split("|")]
        if line.startswith("## "):
            place = line[3:] if line[3:] in BACKENDS else "summary"
        elif line.startswith("Compiler: "):
            found.compilers[place] = line.removeprefix("Compiler: ").rstrip(".")
        elif line.startswith("| ") and cells[0] in {n.model for n in NETWORKS} and place == "summary":
            found.summary[cells[0]] = [cell.removesuffix(" †") for cell in cells[1:]]
        elif line.startswith("| ") and cells[0] in {n.model for n in NETWORKS}:
            if cells[1] == "yes" or cells[1].startswith("no"):
                cells.insert(1, EARLIER)
            found.rows.setdefault(place, {})[cells[0]] = f"| {' | '.join(cells)} |"
        elif line.startswith("- ") and place in BACKENDS:
            found.reasons.setdefault(place, []).append(line)
    return found


def page(state: dict[str, dict[str, Any]], text: str = "") -> str:
    """The page of all cells that are known, and of the rows of `text`, the former page, for the others."""
    before = former(text)
    lines = [INTRODUCTION.format(heavy=", ".join(HEAVY), samples=SAMPLES), *summary(state, before)]
    for backend in BACKENDS:
        cells, exact = (
            {n.model: state[key] for n in NETWORKS if (key := key_of(n, backend, scales)) in state} for scales in SCALES
        )
        kept = {m: line for m, line in before.rows.get(backend, {}).items() if m not in cells and m not in exact}
        if not cells and not exact and not kept:
            continue
        known = [*cells.values(), *exact.values()]
        missing = before.compilers.get(backend, "not installed")
        compiler = next((c["compiler"] for c in known if "compiler" in c), missing)
        lines += [f"\n## {backend}\n", f"Compiler: {compiler}.\n"]
        heads = (
            "network",
            "measured",
            "accepted",
            "heavy on integers",
            "LSB",
            "by itself",
            "score",
            "in onnxruntime",
            "samples",
        )
        heads += ("exact: LSB", "exact: by itself", "exact: score", "exact: in onnxruntime", "exact: samples")
        lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        names = [n.model for n in NETWORKS if n.model in cells or n.model in exact or n.model in kept]
        lines += [kept.get(name) or row(name, cells.get(name), exact.get(name)) for name in names]
        lines += reasons(cells, [line for line in before.reasons.get(backend, []) if any(m in line for m in kept)])
    return "\n".join(lines) + "\n"


def summary(state: dict[str, dict[str, Any]], before: Former) -> list[str]:
    """Differences in LSB of every network through every compiler, with both kinds of scales."""
    lines = [SUMMARY, f"| network | {' | '.join(BACKENDS)} |", "|---" * (len(BACKENDS) + 1) + "|"]
    for network in NETWORKS:
        found = [[state.get(key_of(network, b, s), {}).get("steps") for s in SCALES] for b in BACKENDS]
        cells = [" → ".join(map(_bold, pair)) if any(v is not None for v in pair) else "-" for pair in found]
        for i, (cell, backend) in enumerate(zip(cells, BACKENDS, strict=True)):
            stated = before.summary.get(network.model, [])
            if cell == "-" and i < len(stated) and stated[i] != "-":
                old = EARLIER in before.rows.get(backend, {}).get(network.model, "")
                cells[i] = f"{stated[i]} †" if old else stated[i]
        lines.append(f"| {network.model} | {' | '.join(cells)} |")
    return [*lines, WHY]


def _bold(steps: float | None) -> str:
    if steps is None:
        return "-"
    return f"**{steps:.1f}**" if steps <= LIMIT else f"{steps:.1f}"


def row(name: str, found: dict[str, Any] | None, exact: dict[str, Any] | None) -> str:
    """One network of a backend's table."""
    if found is not None and not found.get("accepted"):
        date = found.get("date", "-")
        return f"| {name} | {date} | no: {found.get('error', '')[:200]} |{' - |' * 11}".replace("\n", " ")
    either = found or exact or {}
    columns = [
        name,
        either.get("date", "-"),
        "yes",
        f"{either['integer']} of {either['able']}" if either.get("accepted") else "-",
    ]
    for known in (found, exact):
        columns += _figures(known) if known is not None and known.get("accepted") else ["-"] * 5
    return f"| {' | '.join(columns)} |"


def _figures(found: dict[str, Any]) -> list[str]:
    """Difference in LSB, that of one node by itself, both scores and the number of samples."""
    steps = "-" if found["steps"] is None else f"{found['steps']:.1f} ({found['beyond']:.1%})"
    if found.get("others"):
        steps += f", {found['matched']:.1f} in {found['rows'] - found['others']} of {found['rows']} rows"
    own, score = "-" if found.get("own") is None else f"{found['own']:.1f}", found.get("score")
    if not score:
        return [steps, own, *["-"] * 3]
    return [steps, own, f"{score['found']:g}", f"{score['reference']:g}", str(score["samples"])]


def reasons(cells: dict[str, dict[str, Any]], kept: list[str]) -> list[str]:
    """Heavy nodes that are not on integers, gathered by operator and reason; and `kept`, lines of the former page."""
    groups: Counter[tuple[str, str]] = Counter()
    places: dict[tuple[str, str], set[str]] = {}
    for name, found in cells.items():
        for node, op_type, why in found.get("float", []):
            key = (op_type, _without_names(why, node))
            groups[key] += 1
            places.setdefault(key, set()).add(name)
    if not groups and not kept:
        return ["\nEvery heavy node runs on integers."]
    lines = ["\nNot on integers:\n"]
    for (op_type, why), count in groups.most_common():
        lines.append(f"- {op_type}, {count} in {', '.join(sorted(places[op_type, why]))}: {why or 'no reason known'}")
    return [*lines, *(line for line in kept if line not in lines)]


def _without_names(why: str, node: str) -> str:
    """A reason without the names in it, so that equal ones are counted together."""
    parts = why.replace(node, "…").split("'")
    return "'…'".join(parts[::2]) if len(parts) % 2 else why


def main() -> None:
    """Fill the cells that are asked for, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=[n.model for n in NETWORKS])
    parser.add_argument("--backends", nargs="*", default=list(BACKENDS))
    parser.add_argument("--scales", nargs="*", default=list(SCALES), choices=SCALES)
    parser.add_argument("--again", action="store_true", help="also cells that are known")
    parser.add_argument("--calibration", type=int, help="calibrate on no more samples than this")
    parser.add_argument("--limit", type=int, help="score no more samples than this")
    parser.add_argument("--page", action="store_true", help="only write the page")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for each run of a compiler")
    chosen = parser.parse_args()
    state: dict[str, dict[str, Any]] = json.loads(STATE.read_text()) if STATE.exists() else {}
    scorer = _shared.scorer() if not chosen.page else None
    for network in NETWORKS if scorer is not None else ():
        pairs = [(b, s) for b in chosen.backends for s in chosen.scales]
        wanted = [(b, s) for b, s in pairs if chosen.again or key_of(network, b, s) not in state]
        if network.model not in chosen.models or not wanted:
            continue
        assert scorer is not None
        if chosen.limit is not None:
            limits = (min(chosen.limit, network.simulated), min(chosen.limit, network.limit))
            network = dataclasses.replace(network, simulated=limits[0], limit=limits[1])
        if chosen.calibration is not None and chosen.calibration < network.calibration:
            network = dataclasses.replace(network, calibration=chosen.calibration, fewer=True)
        with tempfile.TemporaryDirectory(prefix="matrix-") as folder:
            given = source(scorer, network, Path(folder))
            for backend, scales in wanted:
                found = cell(scorer, network, backend, scales, given, chosen.timeout)
                said = {k: v for k, v in found.items() if k != "float"}
                print(network.model, backend, scales, json.dumps(said), flush=True)
                state = json.loads(STATE.read_text()) if STATE.exists() else state
                state[key_of(network, backend, scales)] = found
                STATE.parent.mkdir(exist_ok=True)
                staged = STATE.with_suffix(".part")
                staged.write_text(json.dumps(state, indent=1) + "\n")
                staged.replace(STATE)
                PAGE.write_text(page(state, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    PAGE.write_text(page(state, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
