"""Which of a folder's ONNX models torch.export (dynamic batch) and torch.compile (one graph) take, as a table.

    ONNXQAT_SHARED=../shared python tools/bench/export_models.py [--models FOLDER] [--filter TEXT] [--json FILE]

For each model: import, forward, ``torch.export`` with the batch and every other symbolic dimension dynamic, the exported
program on another size against the module, ``torch.compile(fullgraph=True)`` against the module.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch

from onnxqat.bridge.importing.importer import OnnxModule, to_torch

SIZES = {"batch": (2, 3), "": (48, 64)}
TORCH_TYPES = {1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool, 10: torch.float16}
SPECIAL: dict[str, dict[str, torch.Tensor]] = {
    "swift_f0": {"fmin": torch.tensor(50.0), "fmax": torch.tensor(1000.0)},
}
# Inputs made constants, as each of the two branches that they choose from takes another length of audio.
CONSTANT = {"silero_vad": {"sr": np.array(16000)}}
# Sizes that are no batch in front and cannot be had at will behind: (model, input, axis) -> smaller, larger.
FIXED = {
    ("silero_vad", "input", 1): (512, 512),
    ("silero_vad", "state", 1): (2, 3),
    ("swift_f0", "audio", 0): (1, 1),
    ("swift_f0", "audio", 1): (8000, 9000),
}


def load(path: pathlib.Path) -> ir.Model:
    """The model, with inputs of :data:`CONSTANT` as initializers."""
    model = ir.load(path)
    for name, array in CONSTANT.get(path.stem, {}).items():
        value = next(v for v in model.graph.inputs if v.name == name)
        model.graph.inputs.remove(value)
        value.const_value = ir.Tensor(array, name=name)
        model.graph.register_initializer(value)
    return model


def inputs(path: pathlib.Path, module: OnnxModule, which: int) -> tuple[list[torch.Tensor], list[dict[int, Any]]]:
    """Random inputs of the smaller or the larger size, and the dynamic dimensions of each."""
    graph = onnx.load(path, load_external_data=False).graph
    infos = {value.name: value for value in graph.input}
    given, dynamic = [], []
    for name in module.input_names:
        kind = infos[name].type.tensor_type
        shape, free = [], {}
        for axis, dim in enumerate(kind.shape.dim):
            if dim.dim_value > 0:
                shape.append(dim.dim_value)
                continue
            sizes = FIXED.get((path.stem, name, axis)) or SIZES["batch" if axis == 0 else ""]
            shape.append(sizes[which])
            if sizes[0] != sizes[1]:
                free[axis] = torch.export.Dim.AUTO
        if name in SPECIAL.get(path.stem, {}):
            given.append(SPECIAL[path.stem][name])
        elif TORCH_TYPES[kind.elem_type].is_floating_point:
            given.append(torch.randn(shape, generator=torch.Generator().manual_seed(which)))
        else:
            given.append(torch.ones(shape, dtype=TORCH_TYPES[kind.elem_type]))
        dynamic.append(free)
    return given, dynamic


def difference(found: Any, wanted: Any) -> float:
    """Largest difference, relative to the largest value where that is above 1."""
    worst = 0.0
    for f, w in zip(_tuple(found), _tuple(wanted), strict=True):
        if w.numel() and w.is_floating_point():
            worst = max(worst, float((f - w).abs().max()) / max(1.0, float(w.abs().max())))
        elif not torch.equal(f, w):
            worst = float("inf")
    return worst


def _tuple(value: Any) -> tuple[torch.Tensor, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def attempt(action: Callable[[], float]) -> str:
    """``ok``, or how far off, or the first line of the error."""
    try:
        worst = action()
    except Exception as error:  # a bench reports what fails and goes on
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:160]
    return "ok" if worst < 1e-3 else f"differs by {worst:.2g}"


def measure(path: pathlib.Path, backend: str) -> dict[str, Any]:
    """The row of one model."""
    start = time.perf_counter()
    module = to_torch(load(path)).eval()
    row: dict[str, Any] = {"model": path.stem, "nodes": len(module.graph.nodes)}
    row["import_s"] = round(time.perf_counter() - start, 2)
    given, dynamic = inputs(path, module, 0)
    other, _ = inputs(path, module, 1)
    row["dynamic"] = sum(len(d) for d in dynamic)

    def exported() -> float:
        shapes = tuple(d or None for d in dynamic)
        program = torch.export.export(module, tuple(given), dynamic_shapes=shapes, strict=False)
        row["symbols"] = len(program.range_constraints)
        with torch.no_grad():
            return difference(program.module()(*other), module(*other))

    def compiled() -> float:
        torch._dynamo.reset()
        with torch.no_grad():
            made = torch.compile(module, fullgraph=True, backend=backend)
            return max(difference(made(*given), module(*given)), difference(made(*other), module(*other)))

    row["export"], row["compile"] = attempt(exported), attempt(compiled)
    row["seconds"] = round(time.perf_counter() - start, 1)
    return row


def main() -> None:
    """Print the table; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = pathlib.Path(os.environ.get("ONNXQAT_SHARED", "../shared"))
    parser.add_argument("--models", type=pathlib.Path, default=shared / "data" / "models")
    parser.add_argument("--filter", default="")
    parser.add_argument("--backend", default="eager", help="torch.compile backend")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    print("| model | nodes | dynamic dims | symbols | export | compile |\n|---|---|---|---|---|---|")
    for path in sorted(options.models.glob("*.onnx")):
        if options.filter not in path.stem:
            continue
        row = measure(path, options.backend)
        rows.append(row)
        cells = (row["model"], row["nodes"], row["dynamic"], row.get("symbols", ""), row["export"], row["compile"])
        print("|", " | ".join(str(c) for c in cells), "|", flush=True)
    good = sum(r["export"] == "ok" and r["compile"] == "ok" for r in rows)
    print(f"\n{good} of {len(rows)} export and compile; torch {torch.__version__}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
