"""The form of a model that a backend reads."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.backends import schema
from onnxqat.errors import BackendError
from onnxqat.graph import query
from onnxqat.passes import _base as passes
from onnxqat.passes import _opset
from onnxqat.passes._setting import Setting
from onnxqat.passes.strip_qdq import StripQdq
from onnxqat.pipeline import recipes, run
from onnxqat.types import Remark

_SHOWN = 3


def deploy_form(train: ir.Model, table: schema.Backend, remarks: list[Remark]) -> ir.Model:
    """The deploy form that the backend of `table` reads; `train` is not changed.

    Raises:
        BackendError: ``backend-opset``: it needs a newer operator set than the backend reads.
    """
    setting = Setting(table, opset=table.opset[0], deploys=True)
    result = passes.run_passes(train, run.steps(recipes.DEPLOY, setting))
    deploy = result.model
    if query.opset(deploy) > table.opset[1]:
        newer = [name for remark in _opset.too_new(deploy, table.backend, table.opset[1]) for name in remark.nodes]
        nodes = ", ".join(repr(name) for name in newer[:_SHOWN]) + (", ..." if newer[_SHOWN:] else "")
        raise BackendError(
            "backend-opset",
            f"{table.backend} reads opset {table.opset[0]} to {table.opset[1]}; this model needs {query.opset(deploy)}"
            + (f" for {nodes}" if nodes else ""),
            hint=f"use 8-bit types where it is 4 or 16 bits that need it; export the operator for opset {table.opset[1]}, "
            "as its parts, or cut it off with `onnxqat cut`",
        )
    remarks.extend(result.remarks)
    assert isinstance(deploy, ir.Model)
    return deploy


def float_form(train: ir.Model) -> ir.Model:
    """The float model, for tools that quantize by themselves; `train` is not changed."""
    steps: list[passes.Pass] = [StripQdq()]
    model = passes.run_passes(train, steps).model
    assert isinstance(model, ir.Model)
    return model
