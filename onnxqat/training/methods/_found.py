"""Look-up of a method: a file of this package, a file of the user's, or another package's entry point.

A method file has a class ``Method``, a :class:`onnxqat.bridge.quantizers.fake_quantize.FakeQuantize`, and may have a function
``reference(x, qparams, ...)`` that computes the same in numpy.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from onnxqat import discover
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.errors import UnsupportedError, UsageError
from onnxqat.graph import files_read

PACKAGE = "onnxqat.training.methods"
GROUP = "onnxqat.methods"
"""Entry points ``my-method = "package.module"`` of other packages."""

_OTHER_LEVELS = "ONNX's quantizers have equal steps between their codes, so no Q/DQ pair can hold it"
REFUSED = {
    "n2uq": f"its learned thresholds lie at unequal distances (Liu et al., CVPR 2022); {_OTHER_LEVELS}",
    "apot": f"its levels are sums of powers of two (Li et al., ICLR 2020); {_OTHER_LEVELS}",
    "nnie": f"its levels are powers of two, a logarithmic grid; {_OTHER_LEVELS}",
    "lq_nets": f"its levels are sums of learned numbers (Zhang et al., ECCV 2018); {_OTHER_LEVELS}",
}
"""Methods that cannot be written as Q/DQ, and why."""


def definition(name: str) -> ModuleType:
    """The module of method `name`: a name, or the path of a file that ends in ``.py``.

    Raises:
        UsageError: ``name-unknown``, with the closest names that exist; ``option-invalid`` for a file that is missing,
            cannot be imported or has no class ``Method``.
        UnsupportedError: ``quantizer-unsupported`` for a method that cannot be written as Q/DQ.
    """
    if name.endswith(".py"):
        return _checked(_file(Path(name)), name)
    key = name.replace("-", "_").lower()
    if key in REFUSED:
        raise UnsupportedError(
            "quantizer-unsupported",
            f"the method {name!r} cannot be exported: {REFUSED[key]}",
            hint="lsq-plus learns scale and offset of an equal grid, dorefa bends the weights in front of one",
        )
    if key not in discover.names(PACKAGE):
        for entry in importlib.metadata.entry_points(group=GROUP):
            if entry.name.replace("-", "_") == key:
                return _checked(_entry(entry), f"entry point {entry.name} = {entry.value!r}")
    return discover.load(PACKAGE, name)


def key_of(name: str) -> str:
    """Return the name of a method for records: `name` itself, or the stem of a user's file."""
    return Path(name).stem if name.endswith(".py") else name


def _file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError("option-invalid", f"there is no method file {str(path)!r}")
    path = path.resolve()
    files_read.note(path, "the method")
    # A module that can be found by its name: quantizers are copied and pickled.
    name = f"onnxqat_method_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(path) and not _changed(known, path):
        return known
    sys.modules[name] = module
    module.__dict__["_read"] = path.stat().st_mtime_ns
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a foreign file does when it is run
        del sys.modules[name]
        raise UsageError("option-invalid", f"{path}: {type(error).__name__}: {error}") from None
    return module


def _changed(module: ModuleType, path: Path) -> bool:
    return bool(module.__dict__.get("_read") != path.stat().st_mtime_ns)


def _entry(entry: importlib.metadata.EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:  # whatever a foreign package does when it is imported
        stated = f"entry point {entry.name} = {entry.value!r}"
        raise UsageError("option-invalid", f"{stated}: {type(error).__name__}: {error}") from None


def _checked(module: Any, name: str) -> ModuleType:
    kind = getattr(module, "Method", None)
    if not isinstance(module, ModuleType) or not isinstance(kind, type) or not issubclass(kind, FakeQuantize):
        raise UsageError(
            "option-invalid",
            f"{name}: there is no class Method that is a FakeQuantize",
            hint="see docs/methods.md",
        )
    return module
