"""Everything but the bridge, the training and what MQBench users know imports where torch and the other optional packages are missing."""

import subprocess
import sys
from pathlib import Path

from tests import hanging
from tests.source_tree import module_name, package_files

NEEDS_TORCH = ("onnxqat.bridge.", "onnxqat.training.", "onnxqat.from_torch.", "onnxqat.compat.")

IMPORT_ALL = """
import importlib, sys
for optional in ("torch", "triton", "safetensors", "onnxsim", "openvino", "sklearn"):
    sys.modules[optional] = None  # importing it now raises ImportError
failed = []
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        failed.append(f"{name}: {type(error).__name__}: {error}")
sys.exit("\\n".join(failed) or 0)
"""

IMPORT_PACKAGE = """
import sys
import onnxqat
heavy = {"torch", "onnxruntime", "onnx", "onnx_ir", "numpy"} & set(sys.modules)
sys.exit(f"importing onnxqat imports {sorted(heavy)}" if heavy else 0)
"""


def python(repository: Path, code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `code` in a fresh interpreter at the repository root."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=hanging.SECONDS, check=False)


def test_modules_import_without_optional_packages(repository: Path) -> None:
    modules = [module_name(path) for path in package_files()]
    modules = [name for name in modules if not name.startswith(NEEDS_TORCH) and not name.endswith(".__main__")]
    done = python(repository, IMPORT_ALL, *modules)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_imports_nothing_heavy(repository: Path) -> None:
    done = python(repository, IMPORT_PACKAGE)
    assert done.returncode == 0, done.stderr
