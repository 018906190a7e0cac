"""Hold what insert-qdq makes of inputs from public bug reports against what the reports ask for.

    python tools/bench/public_cases.py
    python tools/bench/public_cases.py --backend qnn-htp --precise

The cases and their checker are found by ONNXQAT_SHARED. Without --backend, a case that is about int8 activations goes to
onnxruntime-cpu-s8 or, where they are symmetric, to tensorrt, and every other to onnxruntime-cpu. Inputs that are
quantized already keep their pairs. Leaves with status 1 when an expectation is broken.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import _shared
import onnx
import onnxruntime

from onnxqat.errors import QatError
from onnxqat.insertion.insert import insert_qdq
from onnxqat.placement.table_overrides import Overrides

BACKENDS = {"int8": "onnxruntime-cpu-s8", "int8sym": "tensorrt"}


class _PreciseOptions(onnxruntime.SessionOptions):  # type: ignore[misc]
    """Integer kernels that do not saturate on processors without VNNI."""

    def __init__(self) -> None:
        super().__init__()
        self.add_session_config_entry("session.x64quantprecision", "1")


def outcome(checker: ModuleType, name: str, backend: str | None, output: Path, precise: bool) -> tuple[str, str]:
    """A word for what became of a case, and why."""
    options = _PreciseOptions if precise else onnxruntime.SessionOptions
    path, inputs, calibration, expect = checker.load_case(name)
    refuse = bool(expect.get("refuse"))
    sweep = [()] if expect.get("sweep") != "exclude-each" else [(n.name,) for n in onnx.load(path).graph.node if n.name]
    broken: list[str] = []
    for excluded in sweep:
        chosen = (*expect.get("exclude", ()), *excluded)
        bits = 16 if expect.get("act_type") == "int16" else None
        try:
            insert_qdq(
                str(path),
                backend or BACKENDS.get(expect.get("act_type"), "onnxruntime-cpu"),
                data=calibration,
                overrides=Overrides(exclude=chosen, activation_bits=bits),
                keep=True,
                output=output,
            )
        except QatError as error:
            return ("refused as asked" if refuse else "refused"), f"{error.code}: {error.message}"
        if refuse:
            return "not refused", ""
        model = onnx.load(output)
        with mock.patch.object(onnxruntime, "SessionOptions", options):
            broken += checker.check(onnx.load(path), model, inputs, expect)[0]
        broken += _channels(model, expect.get("per_channel", {}))
    return ("broken" if broken else "holds"), "; ".join(broken)


def _channels(model: onnx.ModelProto, expected: dict[str, int]) -> list[str]:
    found = {t.name: t.dims for t in model.graph.initializer}
    scales = {n.input[0]: list(found.get(n.input[1], ())) for n in model.graph.node if n.op_type == "QuantizeLinear"}
    return [f"{name} has scales {scales.get(name)}" for name, count in expected.items() if scales.get(name) != [count]]


def main() -> int:
    """Run the cases and print what does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", help="one backend for all cases")
    parser.add_argument("--case", default="*", help="pattern of names")
    parser.add_argument(
        "--precise", action="store_true", help="the checker's sessions with session.x64quantprecision=1"
    )
    arguments = parser.parse_args()
    folder = _shared.SHARED / "suites" / "cases"
    spec = importlib.util.spec_from_file_location("check", folder / "check.py")
    assert spec is not None
    assert spec.loader is not None
    checker: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(checker)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        for case in sorted(folder.glob(f"{arguments.case}.json")):
            word, reason = outcome(
                checker, case.stem, arguments.backend, Path(scratch) / "case.onnx", arguments.precise
            )
            counts[word] += 1
            if word not in ("holds", "refused as asked"):
                print(f"{case.stem}: {word}: {reason}")
    print(", ".join(f"{count} {word}" for word, count in counts.most_common()))
    return int(bool(set(counts) - {"holds", "refused as asked"}))


if __name__ == "__main__":
    sys.exit(main())
