"""Findings of a sensitivity analysis: a row for each tensor and layer, the curve, and the lists that follow from them."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from onnxqat import metrics
from onnxqat.displayed import Displayed
from onnxqat.types import Remark, Role
from onnxqat.validation.tensor_statistics import TensorStatistics

By = Literal["tensor", "layer"]
Way = Literal["alone", "off", "cumulative"]
Measure = Literal["sqnr", "cosine", "mse", "lsb", "score"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of some quantizers at the model's outputs, for the output that suffers most.

    *Alone* has only these on and compares with none on. *Off* has all others on, these off, and compares with none on
    too: the nearer to the float outputs, the more these cost.

    Attributes:
        alone_db: signal to noise; infinite where nothing changes, None where it was not measured, as all below.
        alone_cosine: cosine between the two outputs.
        alone_mse: mean squared difference.
        alone_score: score with only these on; None where no score was asked for.
        off_db: signal to noise.
        off_cosine: cosine.
        off_mse: mean squared difference.
        off_score: score.
    """

    alone_db: float | None = None
    alone_cosine: float | None = None
    alone_mse: float | None = None
    alone_score: float | None = None
    off_db: float | None = None
    off_cosine: float | None = None
    off_mse: float | None = None
    off_score: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorProfile(Cost):
    """One quantizer.

    *All* compares the quantized tensor with all quantizers on against the float tensor.

    Attributes:
        tensor: the float tensor that it quantizes.
        role: activation, weight or bias.
        node: its first reader.
        grid: integer type and codes.
        all_db: signal to noise of the tensor.
        all_cosine: cosine between quantized and float tensor.
        all_mse: mean squared difference of the tensor.
        all_steps: largest difference of the tensor in LSB of its own grid.
        reference: where the float tensor comes from: ``float model``, or ``quantizers off`` where that has none of
            this name.
        statistics: of the values that it rounds; None where there was no value.
    """

    tensor: str
    role: Role
    node: str
    grid: str
    all_db: float
    all_cosine: float
    all_mse: float
    all_steps: float
    reference: str
    statistics: TensorStatistics | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerProfile(Cost):
    """All quantizers of one node: inputs, weight and bias, and the result that only nodes in float read.

    Where tensors and not layers were measured, `alone_db` is that of the noise of its tensors, added up.

    Attributes:
        node: its name, or that of the tensor that it makes.
        op_type: its operator.
        tensors: the float tensors that are quantized for it.
        all_db: lowest signal to noise of these, all quantizers on.
        all_steps: largest difference of these in LSB of their own grids.
    """

    node: str
    op_type: str
    tensors: tuple[str, ...]
    all_db: float
    all_steps: float


@dataclasses.dataclass(frozen=True)
class CurvePoint:
    """The model with the most sensitive layers, or tensors, in float.

    Attributes:
        count: how many are in float.
        name: the one that became float here; empty at the start.
        output_db: signal to noise of the worst output.
        cosine: lowest cosine of an output.
        mse: largest mean squared difference of an output.
        score: score; None where none was asked for.
    """

    count: int
    name: str
    output_db: float
    cosine: float
    mse: float
    score: float | None = None


@dataclasses.dataclass(frozen=True)
class ProfileReport(Displayed):
    """Result of :func:`onnxqat.validation.profile.profile`.

    Attributes:
        float_model: path, or what messages call it.
        qdq_model: the same.
        data: name of the data source.
        samples: number of samples.
        tensors: one per quantizer, the one that costs most first.
        layers: one per node that reads quantizers, the one that costs most first.
        output_db: signal to noise of the worst output with all quantizers on.
        remarks: what is worth knowing.
        by: what was switched: single tensors or layers.
        ways: how.
        sort: measure of the order.
        curve: the cumulative way; empty where it was not taken.
        level_db: signal to noise that `exclude` is to reach.
        exclude: nodes to leave in float, the costliest first: as many as `curve` says that it takes to reach the level,
            none where it is reached without; three where there is no curve.
        bits_of: the same nodes as values of ``--bits-of``, with activations of 16 bits; empty where the backend has none.
        score: of the float model and of the model with all quantizers on; None where none was asked for.
        backend: the table that the quantized model was made with, where its file says so.
        widths: values of ``--bits`` and ``--first-last-bits`` that it was made with; empty and None: those of the table.
        source: data that the file was calibrated on, else those on the command line, for the next one; empty: none is known.
        preprocess: preprocessing line of images.
    """

    displayed_by: ClassVar[str] = "onnxqat.report.build_profile:from_profile"

    float_model: str
    qdq_model: str
    data: str
    samples: int
    tensors: tuple[TensorProfile, ...]
    layers: tuple[LayerProfile, ...]
    output_db: float
    remarks: tuple[Remark, ...]
    by: By = "tensor"
    ways: tuple[Way, ...] = ("alone",)
    sort: Measure = "sqnr"
    curve: tuple[CurvePoint, ...] = ()
    level_db: float = 20.0
    exclude: tuple[str, ...] = ()
    bits_of: tuple[str, ...] = ()
    score: metrics.Scored | None = None
    backend: str | None = None
    widths: tuple[str, int | None] = ("", None)
    source: str = ""
    preprocess: str = ""
