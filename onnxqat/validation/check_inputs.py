"""First steps of comparing a float with a quantized model: check that the two fit together, and open the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxqat.calibration.batch_size import open_fitted
from onnxqat.data import data as sources
from onnxqat.data import inputs as model_inputs
from onnxqat.data.data import Data
from onnxqat.data.recorded import Recorded
from onnxqat.errors import DataError, ModelError, UsageError
from onnxqat.graph import io, qdq, quantized_forms, quantizer_checks
from onnxqat.types import Remark

if TYPE_CHECKING:
    from onnxqat.data.preprocess import Preprocess

RANDOM_BATCHES = 16


def load_both(float_model: io.ModelSource, qdq_model: io.ModelSource) -> tuple[ir.Model, ir.Model]:
    """Load a float and a quantized model that fit together.

    Raises:
        ModelError: ``model-not-quantized``, and what :func:`check_alike` and :func:`onnxqat.graph.io.load` raise.
    """
    original, quantized = io.load(float_model), io.load(qdq_model)
    if not qdq.is_quantized(quantized):
        raise quantized_forms.refusal(quantized, io.name_of(qdq_model)) or ModelError(
            "model-not-quantized",
            f"{io.name_of(qdq_model)} holds no quantizers",
            hint="the quantized model comes second",
        )
    check_alike(original, quantized)
    return original, quantized


def check_alike(original: ir.Model, quantized: ir.Model) -> None:
    """Refuse two models that have other inputs or outputs, or none of the latter.

    Raises:
        ModelError: ``model-invalid``; ``scale-invalid`` for scales that are no steps.
    """
    quantizer_checks.check(quantized, "the quantized model")
    check_outputs(original)
    for kind in ("inputs", "outputs"):
        pair = []
        for model in (original, quantized):
            values = getattr(model.graph, kind)
            pair.append([str(v.name) for v in values if v.name not in model.graph.initializers])
        if set(pair[0]) != set(pair[1]):
            raise ModelError(
                "model-invalid",
                f"the {kind} of the two models differ: {', '.join(pair[0])} and {', '.join(pair[1])}",
                hint="compare a model with the quantized form of that same model",
            )


def check_outputs(model: ir.Model) -> None:
    """Refuse a model without outputs, of which there is nothing to compare.

    Raises:
        ModelError: ``model-invalid``.
    """
    if not model.graph.outputs:
        raise ModelError(
            "model-invalid",
            "the model has no outputs: there is nothing to compare",
            hint="export it again with the tensors that are its results as outputs",
        )


def open_data(
    model: ir.Model,
    data: Any,
    preprocess: str | Preprocess | None,
    batch_size: int | None,
    limit: int | None,
    *,
    random_data: bool,
    recorded: Recorded | None = None,
) -> Data:
    """The data to compare on, as :func:`onnxqat.data.data.open_data` opens them, or random numbers.

    Batches have at most `batch_size` samples, and fewer where the tensors of `model` on them would take much memory
    (:mod:`onnxqat.calibration.batch_size`). With `recorded`, its data and its preprocessing are used where none are given.

    Raises:
        DataError: ``data-missing``, and what the data source raises.
        UsageError: ``option-invalid``: both data and random data are asked for.
    """
    recorded = recorded or Recorded()
    remarks: list[Remark] = []
    data = data if random_data else recorded.data_or(data, remarks)
    if data is None:
        if not random_data:
            raise DataError(
                "data-missing",
                "there is no data to compare on",
                hint="give --data, or --random-data to compare the arithmetic on random numbers",
            )
        return sources.random_data(model_inputs.of_graph(model.graph), limit or RANDOM_BATCHES)
    if random_data:
        raise UsageError("option-invalid", "there are both data and --random-data", hint="give one of them")
    opened = open_fitted(data, model, preprocess=preprocess, batch_size=batch_size, limit=limit, recorded=recorded)
    opened.remarks[:0] = remarks
    return opened
