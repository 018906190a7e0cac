"""Distance of a compiler's outputs from the reference, in LSB of the output's own quantizer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.deployment.base_compiler import Array
from onnxqat.graph import qdq
from onnxqat.metrics._closeness import Difference
from onnxqat.types import QParams

ROUNDING_STEPS = 1e-3
"""Float rounding of a difference of values on a grid, in LSB: added to the limit."""


@dataclasses.dataclass(frozen=True)
class OutputCheck:
    """One graph output.

    Attributes:
        output: its name.
        unit: what a step is: ``quantizer`` where the output carries Q/DQ, else ``range``: 1/255 of the range that the
            reference spans.
        step: size of a step in the output's own unit; the smallest of a per-channel quantizer.
        elements: values compared.
        differing: values that differ at all.
        largest_steps: largest difference in LSB; infinite where NaN or infinity stands against a number.
        mean_steps: mean difference in LSB.
        beyond: share of values further apart than the limit.
        differing_top1: samples whose largest logit differs; None for an output that is no classifier's.
        sqnr_db: signal to noise of the output against the reference; infinite where they are equal, minus infinity where
            NaN or infinity stands against a number.
        samples: rows of the first axis over all batches.
        unlike_integers: values that are not those of execution in integers with the compiler's arithmetic; None where that
            is not known.
        rows: rows that TopK or NonMaxSuppression chose; None for an output that has none.
        other_rows: those that the compiler chose otherwise.
        matched_steps: largest difference in LSB without them.
    """

    output: str
    unit: str
    step: float
    elements: int
    differing: int
    largest_steps: float
    mean_steps: float
    beyond: float
    differing_top1: int | None
    sqnr_db: float
    samples: int
    unlike_integers: int | None = None
    rows: int | None = None
    other_rows: int | None = None
    matched_steps: float | None = None

    @property
    def only_ties(self) -> bool:
        """Check whether values differ, and by one step at most: those next to a rounding tie went the other way."""
        return 0 < self.largest_steps <= 1 + ROUNDING_STEPS


def output_quantizers(model: ir.Model) -> dict[str, QParams]:
    """Parameters of the quantizers whose results are graph outputs, by output name."""
    names = {str(v.name) for v in model.graph.outputs}
    found = {}
    for quantizer in qdq.quantizers(model):
        for value in quantizer.outputs:
            if value.name in names and value.is_graph_output():
                found[str(value.name)] = quantizer.qparams
    return found


def check_outputs(
    found: Sequence[Mapping[str, Array]],
    reference: Sequence[Mapping[str, Array]],
    quantizers: Mapping[str, QParams],
    tolerance_lsb: float,
) -> tuple[OutputCheck, ...]:
    """Compare every output over all batches.

    Args:
        found: outputs of the compiler, one dict a batch.
        reference: those of the reference.
        quantizers: of :func:`output_quantizers`.
        tolerance_lsb: what counts as beyond.
    """
    single = len(reference[0]) == 1
    checks: list[OutputCheck] = []
    for name in reference[0]:
        values, wanted = [batch[name] for batch in found], [batch[name] for batch in reference]
        checks.append(_check(name, values, wanted, quantizers.get(name), tolerance_lsb, single))
    return tuple(checks)


def _check(
    name: str, found: list[Array], reference: list[Array], qparams: QParams | None, tolerance_lsb: float, single: bool
) -> OutputCheck:
    """Compare one output with onnxruntime's over all batches, in LSB of its quantizer or in 1/255 of its range."""
    spans = [np.asarray(r, np.float64)[np.isfinite(np.asarray(r, np.float64))] for r in reference]
    values = np.concatenate([s.ravel() for s in spans])
    span = float(values.max() - values.min()) if values.size else 0.0
    steps = []
    top1: int | None = None
    noise = Difference()
    for own, other in zip(found, reference, strict=True):
        steps.append(_steps(own, other, qparams, span))
        if single and other.ndim == 2 and other.shape[1] > 1 and own.shape == other.shape:
            top1 = (top1 or 0) + int((own.argmax(axis=1) != other.argmax(axis=1)).sum())
        if own.shape == other.shape:
            noise.update(own, other)
    apart = np.concatenate([s.ravel() for s in steps])
    step = float(qparams.scale.min()) if qparams is not None else span / 255
    sqnr_db = noise.sqnr_db if noise.elements else math.inf
    return OutputCheck(
        output=name,
        unit="range" if qparams is None else "quantizer",
        step=step,
        elements=apart.size,
        differing=int(np.count_nonzero(apart)),
        largest_steps=float(apart.max(initial=0.0)),
        mean_steps=float(apart.mean()) if apart.size else 0.0,
        beyond=float((apart > tolerance_lsb + ROUNDING_STEPS).mean()) if apart.size else 0.0,
        differing_top1=top1,
        sqnr_db=-math.inf if np.isinf(apart).any() else sqnr_db,
        samples=sum(len(r) if r.ndim else 1 for r in reference),
    )


def _steps(own: Array, other: Array, qparams: QParams | None, span: float) -> Array:
    if own.shape != other.shape:
        return np.full(other.shape, np.inf)
    a, b = np.asarray(own, np.float64), np.asarray(other, np.float64)
    step: Array = np.asarray(span / 255 or 1.0)
    if qparams is not None:
        step = numerics.along_axis(qparams.scale, qparams.axis, b.ndim).astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b) / step
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isfinite(apart), apart, np.inf))
