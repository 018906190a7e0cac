"""A pass as a fix: applied where it works, left where it refuses."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.errors import QatError
from onnxqat.graph import build
from onnxqat.passes._base import Context, Pass


def apply(step: Pass, model: ir.Model) -> None:
    """Rewrite `model` in place with `step`; where it refuses, `model` stays as it is.

    The verifier is not asked: other findings may be what it would object to.
    """
    try:
        trial = model.clone()
        step.rewrite(trial, Context(build.Names(trial)))
    except QatError:
        return
    step.rewrite(model, Context(build.Names(model)))
