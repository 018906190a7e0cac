"""The form of a model that a backend reads."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.backends import schema
from onnxqat.errors import BackendError
from onnxqat.graph import query
from onnxqat.passes import _base as passes
from onnxqat.passes.deploy_form import DeployForm
from onnxqat.passes.fold_weight_transpose import FoldWeightTranspose
from onnxqat.passes.inline_functions import InlineFunctions
from onnxqat.passes.raise_opset import RaiseOpset
from onnxqat.passes.strip_qdq import StripQdq
from onnxqat.passes.unique_names import UniqueNames
from onnxqat.types import Remark


def deploy_form(train: ir.Model, table: schema.Backend, remarks: list[Remark]) -> ir.Model:
    """The deploy form that the backend of `table` reads; `train` is not changed.

    Functions are inlined: OpenVINO has no rule for a call.

    Raises:
        BackendError: ``backend-opset``: it needs a newer operator set than the backend reads.
    """
    floats = any(row.derive is not None and row.dtype == "float" for row in table.types.values())
    steps: list[passes.Pass] = [
        UniqueNames(),
        InlineFunctions(),
        FoldWeightTranspose(),
        DeployForm(bias="float" if floats else "keep"),
    ]
    result = passes.run_passes(train, steps)
    deploy, found = result.model, list(result.remarks)
    if query.opset(deploy) < table.opset[0]:
        raised = passes.run_passes(deploy, [RaiseOpset(table.opset[0])])
        deploy = raised.model
        found += raised.remarks
    if query.opset(deploy) > table.opset[1]:
        raise BackendError(
            "backend-opset",
            f"{table.backend} reads opset {table.opset[0]} to {table.opset[1]}; this model needs {query.opset(deploy)}",
            hint="4- and 16-bit storage types need newer operator sets: use 8-bit ones",
        )
    remarks.extend(found)
    assert isinstance(deploy, ir.Model)
    return deploy


def float_form(train: ir.Model) -> ir.Model:
    """The float model, for tools that quantize by themselves; `train` is not changed."""
    steps: list[passes.Pass] = [StripQdq()]
    model = passes.run_passes(train, steps).model
    assert isinstance(model, ir.Model)
    return model
