"""The form of a model that a backend reads."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.backends import schema
from onnxqat.graph import query
from onnxqat.passes import _base as passes
from onnxqat.passes import _opset
from onnxqat.passes._setting import Setting
from onnxqat.passes.strip_qdq import StripQdq
from onnxqat.pipeline import recipes, run
from onnxqat.types import Remark


def deploy_form(train: ir.Model, table: schema.Backend, remarks: list[Remark]) -> ir.Model:
    """The deploy form that the backend of `table` reads; `train` is not changed.

    Raises:
        BackendError: ``backend-opset``: it needs a newer operator set than the backend reads.
    """
    setting = Setting(table, opset=table.opset[0], deploys=True)
    result = passes.run_passes(train, run.steps(recipes.DEPLOY, setting))
    deploy = result.model
    if query.opset(deploy) > table.opset[1]:
        newer = _opset.too_new(deploy, table.opset[1])
        raise _opset.refusal(table.backend, table.opset, query.opset(deploy), newer)
    remarks.extend(result.remarks)
    assert isinstance(deploy, ir.Model)
    return deploy


def float_form(train: ir.Model) -> ir.Model:
    """The float model, for tools that quantize by themselves; `train` is not changed."""
    steps: list[passes.Pass] = [StripQdq()]
    model = passes.run_passes(train, steps).model
    assert isinstance(model, ir.Model)
    return model
