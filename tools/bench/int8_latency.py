"""Latency of int8 files in onnxruntime and OpenVINO: our placement against other quantizers', for the same float files.

    python tools/bench/int8_latency.py make FOLDER [TOOL ...]
    python tools/bench/int8_latency.py time FOLDER [--rounds 60]

``make`` writes ``MODEL.TOOL.onnx`` with the tools that are installed beside this interpreter (they conflict: call it
once with each environment; ``onnxqat`` stands for ours). ``time`` loads all files of one model in one process, runs them in
turns on one thread with a batch of one, and prints the median of each in milliseconds of CPU time, and the ratio of
ours to the fastest other. Ranges come from a few real images or noise: they do not change the time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

SHARED = Path(os.environ.get("ONNXQAT_SHARED", Path(__file__).resolve().parents[2].parent / "shared"))
MODELS = {
    "resnet20": "resnet20_cifar10_bn",
    "mobilenetv2": "mobilenetv2_imagenet_bn",
    "efficientnet_lite0": "efficientnet_lite0_imagenet",
    "yolox_nano": "yolox_nano_coco_416",
}
SAMPLES = 8
OURS = "onnxqat"
Run = Callable[[], Any]


def source(model: str) -> Path:
    """The float file."""
    return SHARED / "data" / "models" / f"{MODELS[model]}.onnx"


def feed(path: Path) -> tuple[str, tuple[int, ...]]:
    """Name and shape of the only input, batch 1."""
    given = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).get_inputs()[0]
    return given.name, (1, *[int(d) for d in given.shape[1:]])


def samples(path: Path) -> list[np.ndarray]:
    """Inputs for calibration: noise of the size that preprocessed images have."""
    random, (_, shape) = np.random.default_rng(0), feed(path)
    scale = 60.0 if "yolox" in path.name else 1.0
    return [(random.standard_normal(shape) * scale).astype(np.float32) for _ in range(SAMPLES)]


class Reader:
    """onnxruntime's interface of calibration data, which Quark shares."""

    def __init__(self, path: Path) -> None:
        self._all = [{feed(path)[0]: x} for x in samples(path)]
        self.rewind()

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next feed."""
        return next(self._feeds, None)

    def rewind(self) -> None:
        """Start over."""
        self._feeds = iter(self._all)

    reset_iter = rewind


def onnxqat(path: Path, output: Path) -> Iterator[str]:
    """Ours, with the table of each runtime, in deploy form: OpenVINO does not fold float weights behind Q/DQ."""
    import onnx

    import onnxqat as tool
    from onnxqat.graph import io
    from onnxqat.passes._base import run_passes
    from onnxqat.passes.deploy_form import DeployForm

    for backend in ("onnxruntime-cpu", "openvino-cpu"):
        data = {feed(path)[0]: np.concatenate(samples(path))}
        made = tool.insert_qdq(onnx.load(path), backend, data=data).model
        io.save(run_passes(made, [DeployForm()]).model, output.with_suffix(f".{OURS}-{backend}.onnx"))
        yield backend


def onnxruntime_static(path: Path, output: Path) -> Iterator[str]:
    """quantize_static behind its own pre-processing, per channel."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = output.with_suffix(".prepared")
    quant_pre_process(str(path), str(prepared), skip_symbolic_shape=True)
    reader = type("DataReader", (Reader, CalibrationDataReader), {})(path)
    for name, activation in (("u8s8", QuantType.QUInt8), ("s8s8", QuantType.QInt8)):
        quantize_static(
            str(prepared),
            str(output.with_suffix(f".onnxruntime-{name}.onnx")),
            reader,
            quant_format=QuantFormat.QDQ,
            activation_type=activation,
            weight_type=QuantType.QInt8,
            per_channel=True,
        )
        reader.rewind()
        yield name


def modelopt(path: Path, output: Path) -> Iterator[str]:
    """NVIDIA ModelOpt."""
    from modelopt.onnx import quantization

    quantization.quantize(
        str(path),
        quantize_mode="int8",
        calibration_data={feed(path)[0]: np.concatenate(samples(path))},
        calibration_method="max",
        calibration_eps=["cpu"],
        output_path=str(output.with_suffix(".modelopt-int8.onnx")),
        high_precision_dtype="fp32",
    )
    yield "int8"


def quark(path: Path, output: Path) -> Iterator[str]:
    """AMD Quark."""
    from quark.onnx import ModelQuantizer
    from quark.onnx.quantization.config.config import Config
    from quark.onnx.quantization.config.custom_config import get_default_config

    for name in ("A8W8", "XINT8"):
        config = Config(global_quant_config=get_default_config(name))
        ModelQuantizer(config).quantize_model(str(path), str(output.with_suffix(f".quark-{name}.onnx")), Reader(path))
        yield name


def nncf(path: Path, output: Path) -> Iterator[str]:
    """NNCF."""
    import nncf as tool
    import onnx

    name = feed(path)[0]
    for preset in (tool.QuantizationPreset.PERFORMANCE, tool.QuantizationPreset.MIXED):
        data = tool.Dataset(samples(path), lambda x: {name: x})
        made = tool.quantize(onnx.load(path), data, preset=preset, subset_size=SAMPLES)
        onnx.save(made, output.with_suffix(f".nncf-{preset.value}.onnx"))
        yield preset.value


TOOLS: dict[str, Callable[[Path, Path], Iterator[str]]] = {
    OURS: onnxqat,
    "onnxruntime": onnxruntime_static,
    "modelopt": modelopt,
    "quark": quark,
    "nncf": nncf,
}


def make(folder: Path, tools: list[str]) -> None:
    """Write the files of the tools that work here."""
    folder.mkdir(parents=True, exist_ok=True)
    for tool in tools or TOOLS:
        for model in MODELS:
            print(f"{model:20} {tool:12} {_made(tool, model, folder)}", flush=True)


def _made(tool: str, model: str, folder: Path) -> str:
    try:
        return ", ".join(TOOLS[tool](source(model), (folder / f"{model}.onnx").absolute()))
    except Exception as error:  # tools of others fail in many ways; the table names them
        return f"not made: {type(error).__name__}: {str(error)[:160]}"


def onnxruntime_run(path: Path, inputs: np.ndarray) -> Run:
    """One inference in a default session on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feeds = {session.get_inputs()[0].name: inputs}
    return lambda: session.run(None, feeds)


def openvino_run(path: Path, inputs: np.ndarray) -> Run:
    """One inference of the compiled model on one thread."""
    import openvino

    model = openvino.Core().read_model(path)
    model.reshape(list(inputs.shape))
    settings = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    return lambda: request.infer([inputs])


def medians(runs: dict[str, Run], rounds: int) -> dict[str, float]:
    """Milliseconds of CPU time of each, in turns."""
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 3):
        for name, run in runs.items():
            start = time.process_time()
            run()
            if number >= 3:
                spent[name].append(1e3 * (time.process_time() - start))
    return {name: round(statistics.median(values), 3) for name, values in spent.items()}


def _started(build: Callable[[Path, np.ndarray], Run], path: Path, inputs: np.ndarray) -> Run | str:
    """What runs the file, or why the runtime does not take it."""
    try:
        run = build(path, inputs)
        run()
    except Exception as error:
        return str(error)[:120]
    return run


def compare(folder: Path, rounds: int, models: list[str]) -> None:
    """The table, one JSON line a model and runtime."""
    for model in models or MODELS:
        inputs = samples(source(model))[0]
        files = {"float": source(model)} | {
            path.name[len(model) + 1 : -len(".onnx")]: path for path in sorted(folder.glob(f"{model}.*.onnx"))
        }
        for runtime, build in (("onnxruntime", onnxruntime_run), ("openvino", openvino_run)):
            ours = f"{OURS}-{runtime}-cpu"
            started = {name: _started(build, path, inputs) for name, path in files.items()}
            refused = {name: run for name, run in started.items() if isinstance(run, str)}
            found = medians({name: run for name, run in started.items() if not isinstance(run, str)}, rounds)
            others = {name: ms for name, ms in found.items() if not name.startswith((OURS, "float"))}
            row: dict[str, Any] = {"model": model, "runtime": runtime, "milliseconds": found, "refused": refused}
            if ours in found and others:
                best = min(others, key=others.__getitem__)
                row |= {"fastest other": best, "ours / fastest other": round(found[ours] / others[best], 3)}
            print(json.dumps(row), flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "time"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="tools for make, models for time; all by default")
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    if arguments.what == "make":
        make(arguments.folder, arguments.names)
    else:
        compare(arguments.folder, arguments.rounds, arguments.names)


if __name__ == "__main__":
    sys.exit(main())
