"""Keep imports that a command may never use out of its start-up time."""

from __future__ import annotations

import importlib.util
import sys


def defer(name: str) -> None:
    """Let a later ``import name`` load the module only when one of its attributes is first used.

    onnx_ir imports sympy (half a second) for arithmetic on symbolic dimensions, which most models never need.
    """
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return
    loader = importlib.util.LazyLoader(spec.loader)
    spec.loader = loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
