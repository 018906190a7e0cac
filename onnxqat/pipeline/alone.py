"""One pass by its name on one model, from file to file."""

from __future__ import annotations

import os

from onnxqat.graph import files_read, io
from onnxqat.passes import _base
from onnxqat.passes._base import PassResult
from onnxqat.pipeline import lookup
from onnxqat.pipeline.lookup import PassSource


@files_read.guard
def run_pass(source: PassSource, model: io.ModelSource, output: str | os.PathLike[str]) -> PassResult:
    """Run one pass on `model` and write the result to `output`; `model` is not changed.

    Args:
        source: name of a pass, path of a Python file, or a pass.
        model: path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph.
        output: file to write, also where nothing changed.

    Returns:
        Its `model` is the path of the file.

    Raises:
        UsageError: there is no such pass, it cannot be made without arguments, or it failed (``pass-failed``).
        ModelError: of :func:`onnxqat.graph.io.load`, and ``pass-postcondition`` where the result is broken.
    """
    files_read.plan(output, "--output")
    step = lookup.made(lookup.find(source))
    assert step is not None  # without a setting there is always one
    loaded = io.load(model)
    result = _base.rewrite(loaded, [step])
    return PassResult(io.save(loaded, output), result.changed, result.remarks)
