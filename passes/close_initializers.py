"""Initializers become constants: they are no graph inputs any more."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log

FIRST_IR_VERSION = 4


class CloseInitializers(Pass):
    """Initializers stop being overridable graph inputs; the IR version becomes at least 4.

    1. A graph input with a default value (an initializer of the same name) is removed from the inputs; the
       initializer stays. Files of IR version 3 list every weight so, and a weight that a caller may exchange at run
       time cannot be quantized ahead of it.
    2. Inputs without an initializer stay, in their order.
    3. An IR version below 4, which demands that initializers are inputs, is raised to 4.

    Tolerance: none; a caller that fed such an input by name is refused by the runtime from now on. ::

        g (float[N] x, float[8] w = {...}) => (float[N] y)
        g (float[N] x) => (float[N] y) <float[8] w = {...}>
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Close initializers; see the class."""
        log = Log()
        graph = model.graph
        open_ones = [value for value in graph.inputs if value.name in graph.initializers]
        for value in open_ones:
            graph.inputs.remove(value)
        if open_ones:
            names = (str(value.name) for value in open_ones)
            log.did("initializers that were graph inputs can no longer be overridden by the caller", *names)
        if model.ir_version < FIRST_IR_VERSION and (open_ones or graph.initializers):
            log.did(f"IR version raised from {model.ir_version} to {FIRST_IR_VERSION}")
            model.ir_version = FIRST_IR_VERSION
        return log.result()
