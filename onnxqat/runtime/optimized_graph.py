"""The graph that onnxruntime's default session runs, as a model."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxqat.graph import io
from onnxqat.graph.staging import scratch
from onnxqat.isolation.child import session_arguments
from onnxqat.runtime import unshared
from onnxqat.runtime.isolated_session import Settings

LAYOUT = "NhwcTransformer"
"""The optimizer that moves channels to the end: it changes no number, and renames tensors."""


def optimized(model: ir.Model, settings: Settings) -> ir.Model:
    """Apply onnxruntime's default graph optimizations to `model`, which a session has already opened.

    Kernels are those of this processor. Tensors that remain keep their names.

    Args:
        model: it is not changed.
        settings: of that session.

    Raises:
        Exception: whatever onnxruntime raises.
    """
    import onnxruntime

    copy = model.clone()
    if settings.entries:
        unshared.unshare(copy)
    with scratch() as folder:
        path, written = folder / "model.onnx", folder / "optimized.onnx"
        ir.save(copy, path, external_data="model.data", size_threshold_bytes=1024)
        options = dataclasses.replace(settings, without=(LAYOUT, *settings.without)).plain()
        arguments = session_arguments(str(path), options)
        arguments["sess_options"].optimized_model_filepath = str(written)
        onnxruntime.InferenceSession(**arguments)
        found = io.load(written)
        # Weights that lie in files of their own would go with the folder.
        for value in found.graph.initializers.values():
            if value.const_value is not None:
                value.const_value = ir.tensor(value.const_value.numpy(), name=value.name)
        return found
