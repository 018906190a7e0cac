"""The real data and models behind the benchmarks, and their scorer."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("ONNXQAT_SHARED", ROOT.parent / "shared"))
SCORER = SHARED / "suites" / "accuracy.py"
MODELS = SHARED / "data" / "models"


def scorer() -> ModuleType:
    """The scorer as a module: data loading and preprocessing of each task."""
    spec = importlib.util.spec_from_file_location("accuracy", SCORER)
    if spec is None or spec.loader is None or not SCORER.exists():
        sys.exit(f"{SCORER} is missing; set ONNXQAT_SHARED to the folder with the benchmark data")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def score(task: str, path: Path, *, optimize: bool = True) -> dict[str, Any]:
    """What the scorer, as a command, says of an ONNX file."""
    flags = [] if optimize else ["--no-optimize"]
    command = [sys.executable, str(SCORER), task, str(path), *flags]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def figure(found: dict[str, Any]) -> float:
    """The one number of a score: top-1 in percent, or mAP."""
    return float(found.get("top1", found.get("mAP50_95", found.get("spearman"))))
