"""BatchNormalization that was kept for training goes into its layer."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args, overload

import onnx_ir as ir

from onnxqat.backends import schema
from onnxqat.displayed import Displayed
from onnxqat.errors import BackendError, UsageError
from onnxqat.graph import batchnorm, folded_batchnorm, io, walk
from onnxqat.graph.io import ModelT
from onnxqat.passes import _base as passes
from onnxqat.passes.fold_batchnorm import FoldBatchnorm
from onnxqat.passes.fold_quantized_batchnorm import FoldQuantizedBatchnorm
from onnxqat.passes.store_batchnorm import StoreBatchnorm
from onnxqat.runtime import broken_model
from onnxqat.types import Remark

Bias = Literal["int32", "snapped", "float"]


FoldedT = TypeVar("FoldedT")


@dataclasses.dataclass(frozen=True)
class Folded(Displayed, Generic[FoldedT]):
    """Result of :func:`fold_batchnorm`.

    Attributes:
        model: of the kind that was given; for a path, the path of the file written.
        remarks: what was folded, and what was left alone and why.
        count: number of BatchNormalization nodes folded.
        left: number of them left.
    """

    displayed_by: ClassVar[str] = "onnxqat.report.build:from_fold"

    model: FoldedT
    remarks: tuple[Remark, ...]
    count: int
    left: int


@overload
def fold_batchnorm(
    model: ModelT, *, backend: str | None = None, bias: Bias | None = None, output: str | os.PathLike[str] | None = None
) -> Folded[ModelT]: ...


@overload
def fold_batchnorm(
    model: str | os.PathLike[str],
    *,
    backend: str | None = None,
    bias: Bias | None = None,
    output: str | os.PathLike[str] | None = None,
) -> Folded[Path]: ...


@broken_model.guard("model")
def fold_batchnorm(
    model: io.ModelSource,
    *,
    backend: str | None = None,
    bias: Bias | None = None,
    output: str | os.PathLike[str] | None = None,
) -> Folded[Any]:
    """Fold every BatchNormalization of a quantized layer: codes stay, pairs stay.

    One behind the layer goes into the scales of the weight; one in front of the weight's quantizer into the weight.
    The train form stays a train form, which can be trained on. :func:`onnxqat.handoff` does this by itself.

    Args:
        model: QDQ model: path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph; it is not changed.
        backend: whose form the biases take; None: the backend that the file names, and int32 where it names none.
        bias: form of the biases, ``"int32"``, ``"snapped"`` or ``"float"``, as in
            :class:`onnxqat.passes.fold_quantized_batchnorm.FoldQuantizedBatchnorm`; None: the backend's.
        output: file to write; for a path, ``<name>.folded.onnx`` beside it by default.

    Raises:
        ModelError: the file's errors.
        BackendError: ``backend-unknown``, ``backend-table``.
        UsageError: ``option-invalid``.
    """
    if bias is not None and bias not in get_args(Bias):
        raise UsageError("option-invalid", f"there is no bias {bias!r}", hint=", ".join(get_args(Bias)))
    loaded = io.load(model)
    remarks: list[Remark] = []
    before = _count(loaded)
    made = folded(loaded, bias or _bias(loaded, backend), remarks)
    left = _count(made)
    result = io.give_back(model, made, output, ".folded.onnx")
    return Folded(result, tuple(remarks), before - left, left)


def folded(model: ir.Model, bias: Bias, remarks: list[Remark]) -> ir.Model:
    """A copy of `model` with every BatchNormalization in its layer where that can be; `model` itself without any."""
    if not _count(model):
        return model
    steps: list[passes.Pass] = [StoreBatchnorm(bias), FoldQuantizedBatchnorm(bias), FoldBatchnorm(kept=True)]
    result = passes.run_passes(model, steps)
    remarks.extend(result.remarks)
    assert isinstance(result.model, ir.Model)
    return result.model


def bias_of(table: schema.Backend) -> Bias:
    """The form in which the backend of `table` takes biases."""
    derived = [row for row in table.types.values() if row.derive is not None]
    if not derived:
        return "float"
    return "snapped" if any(row.dtype == "float" for row in derived) else "int32"


def _bias(model: ir.Model, backend: str | None) -> Bias:
    if backend is not None:
        return bias_of(schema.load(backend))
    try:
        return bias_of(schema.load(model.metadata_props.get("onnxqat.backend", "")))
    except BackendError:  # of a table of one's own, which is not here, or of no table at all
        return "int32"


def _count(model: ir.Model) -> int:
    return sum(batchnorm.is_batchnorm(node) or folded_batchnorm.is_computed(node) for node in walk.nodes(model))
