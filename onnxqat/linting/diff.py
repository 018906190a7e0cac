"""Differences of two QDQ files: placement, types, scales, zero points, codes of weights."""

from __future__ import annotations

import dataclasses
import os
from typing import ClassVar

import numpy as np

from onnxqat import numerics
from onnxqat.displayed import Displayed
from onnxqat.graph import io, qdq, query
from onnxqat.graph.quantizer import Quantizer
from onnxqat.integer_functions import calls
from onnxqat.linting.context import constant_values, tensor_of
from onnxqat.linting.explain import granularity_text, grid_text
from onnxqat.runtime import broken_model


@dataclasses.dataclass(frozen=True)
class PairDifference:
    """One quantizer that differs.

    Attributes:
        tensor: the float tensor.
        role: ``activation``, ``weight`` or ``bias``.
        change: ``only in A``, ``only in B``, or what differs: ``grid``, ``granularity``, ``scale``, ``zero point`` and
            ``codes``, joined by commas.
        grids: type and width in A and in B; None where there is none.
        granularities: the same for the number of scales.
        scale_ratio: smallest and largest scale of B over scale of A; None where they cannot be compared.
        zero_points: largest difference of zero points, B minus A; None where they cannot be compared.
        codes: how many codes of a constant differ, of how many, and by how much at most; None for activations and
            where grid or shape differ.
    """

    tensor: str
    role: str
    change: str
    grids: tuple[str | None, str | None]
    granularities: tuple[str | None, str | None]
    scale_ratio: tuple[float, float] | None = None
    zero_points: int | None = None
    codes: tuple[int, int, int] | None = None


@dataclasses.dataclass(frozen=True)
class Difference(Displayed):
    """Differences of two files.

    Attributes:
        models: the two paths, or ``A`` and ``B``.
        opsets: of their main graphs.
        quantizers: number of quantizers of each.
        same: number of quantizers that are in both, bit for bit, codes of constants included.
        pairs: those that differ, in the order of A, then those of B alone.
    """

    displayed_by: ClassVar[str] = "onnxqat.report.build_diff:from_diff"

    models: tuple[str, str]
    opsets: tuple[int, int]
    quantizers: tuple[int, int]
    same: int
    pairs: tuple[PairDifference, ...]


Key = tuple[str, int]


@broken_model.guard("first", "second")
def diff(first: io.ModelSource, second: io.ModelSource) -> Difference:
    """Compare the quantizers of two files; they are matched by the name of the float tensor, whatever the form.

    Args:
        first: path, onnx.ModelProto, onnx_ir.Model or onnx_graphsurgeon.Graph; it is not changed.
        second: the same.

    Raises:
        ModelError: everything that :func:`onnxqat.graph.io.load` raises.
    """
    models = calls.as_pairs(io.load(first)), calls.as_pairs(io.load(second))
    a, b = _keyed(qdq.quantizers(models[0], every=True)), _keyed(qdq.quantizers(models[1], every=True))
    both = [_compare(key[0], a[key], b[key]) for key in a if key in b]
    pairs = [d for d in both if d is not None]
    pairs += [_one_sided_difference(key[0], q, "A") for key, q in a.items() if key not in b]
    pairs += [_one_sided_difference(key[0], q, "B") for key, q in b.items() if key not in a]
    order = {key[0]: i for i, key in enumerate([*a, *b])}
    return Difference(
        models=(_name(first, "A"), _name(second, "B")),
        opsets=(query.opset(models[0]), query.opset(models[1])),
        quantizers=(len(a), len(b)),
        same=sum(d is None for d in both),
        pairs=tuple(sorted(pairs, key=lambda d: order[d.tensor])),
    )


def _name(model: io.ModelSource, default: str) -> str:
    return os.fspath(model) if isinstance(model, (str, os.PathLike)) else default


def _keyed(found: list[Quantizer]) -> dict[Key, Quantizer]:
    """By tensor, and by position among the quantizers of that tensor."""
    result: dict[Key, Quantizer] = {}
    counts: dict[str, int] = {}
    for quantizer in found:
        tensor = tensor_of(quantizer)
        count = counts.get(tensor, 0)
        counts[tensor] = count + 1
        result[tensor, count] = quantizer
    return result


def _one_sided_difference(tensor: str, quantizer: Quantizer, where: str) -> PairDifference:
    grid, many = grid_text(quantizer.qparams), granularity_text(quantizer.qparams)
    grids = (grid, None) if where == "A" else (None, grid)
    granularities = (many, None) if where == "A" else (None, many)
    return PairDifference(tensor, quantizer.role, f"only in {where}", grids, granularities)


def _compare(tensor: str, a: Quantizer, b: Quantizer) -> PairDifference | None:
    grids = grid_text(a.qparams), grid_text(b.qparams)
    granularities = granularity_text(a.qparams), granularity_text(b.qparams)
    ratio, zero, codes = _ratio(a, b), _zero(a, b), _codes(a, b)
    changes = {
        "grid": a.qparams.qtype != b.qparams.qtype,
        "granularity": granularities[0] != granularities[1],
        "scale": ratio is None or ratio != (1.0, 1.0),
        "zero point": bool(zero),
        "codes": codes is not None and codes[0] > 0,
    }
    change = ", ".join(name for name, changed in changes.items() if changed)
    return PairDifference(tensor, a.role, change, grids, granularities, ratio, zero, codes) if change else None


def _ratio(a: Quantizer, b: Quantizer) -> tuple[float, float] | None:
    scales = a.qparams.scale, b.qparams.scale
    if not scales[0].size or not _fit(*scales):
        return None
    ratio = np.asarray(scales[1], np.float64) / np.asarray(scales[0], np.float64)
    return float(ratio.min()), float(ratio.max())


def _zero(a: Quantizer, b: Quantizer) -> int | None:
    zeros = a.qparams.zero_point, b.qparams.zero_point
    if not zeros[0].size or not _fit(*zeros):
        return None
    apart = np.asarray(zeros[1] - zeros[0]).ravel()
    return int(apart[np.abs(apart).argmax()])


def _fit(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape or 1 in (a.size, b.size)


def _codes(a: Quantizer, b: Quantizer) -> tuple[int, int, int] | None:
    """Codes that differ, all, and the largest difference."""
    if a.qparams.qtype.storage != b.qparams.qtype.storage or a.qparams.qtype.is_float:
        return None
    found = _codes_of(a), _codes_of(b)
    if found[0] is None or found[1] is None or found[0].shape != found[1].shape or not found[0].size:
        return None
    apart = np.abs(found[1] - found[0])
    return int(np.count_nonzero(apart)), int(apart.size), int(apart.max())


def _codes_of(quantizer: Quantizer) -> np.ndarray | None:
    if quantizer.stored:
        stored = query.constant_array(quantizer.input)
        return None if stored is None else np.asarray(stored).astype(np.int64)
    values = constant_values(quantizer)
    return None if values is None else numerics.quantize(values, quantizer.qparams)
