"""Types, zero points, granularity and widths that a backend's table does not have."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnxqat import numerics
from onnxqat.calibration import saturation
from onnxqat.graph import query
from onnxqat.graph.qdq import DEQUANTIZE, QUANTIZE
from onnxqat.graph.quantizer import Quantizer
from onnxqat.linting.comparison import Compared, compared
from onnxqat.linting.context import LintContext, constant_values
from onnxqat.linting.rule import Found, Rule
from onnxqat.placement import table_widths
from onnxqat.placement.tensor_specs import has_weight
from onnxqat.types import Fixed, QType, TensorSpec

SEVEN_BITS = (-64, 63)
"""Codes of which no two products saturate, as a table's `reduce_range` has them."""


def _pairs(file: LintContext, *, weights: bool | None = None) -> Iterator[tuple[Compared, Quantizer, TensorSpec]]:
    """Yield each quantizer of the file once, with its place and the specification that the table wants there."""
    seen: set[int] = set()
    for place in compared(file):
        spec = place.spec
        if isinstance(spec, Fixed) or (weights is not None and (spec.role == "weight") != weights):
            continue
        for quantizer in place.present:
            if id(quantizer) not in seen:
                seen.add(id(quantizer))
                yield place, quantizer, spec


def _storage(file: LintContext, *, weights: bool) -> Iterator[Found]:
    for place, quantizer, spec in _pairs(file, weights=weights):
        have, want = quantizer.qparams.qtype, spec.qtype
        # a narrower grid may lie in a type of its own width or in its 8-bit carrier
        carrier = want.storage.rstrip("0123456789") == have.storage.rstrip("0123456789") and have.bits == want.bits
        if have.storage != want.storage and not carrier and not _is_wide(file, place, quantizer, want):
            text = f"{have.storage}; {_name(file)} takes {want.storage} for {place.edge.rule}"
            yield Found(text, place.node, quantizer.tensor)


def _is_wide(file: LintContext, place: Compared, quantizer: Quantizer, want: QType) -> bool:
    """Check for 16 bits in place of 8 where the target has both, as the guard of `insert-qdq` gives single tensors.

    A constant operand, which has the type of the activation beside it, counts as one; the weight of a layer does not.
    """
    have = quantizer.qparams.qtype
    if quantizer.role == "weight" and any(map(has_weight, quantizer.readers)):
        return False
    if file.table is None or have.bits != table_widths.WIDE or have.storage != want.storage.replace("8", "16"):
        return False
    around = (place.node, quantizer.input.producer())
    kinds = [n.op_type for n in around if n is not None and n.op_type not in (QUANTIZE, DEQUANTIZE)]
    return table_widths.may_be_wide(file.table, kinds)


def _name(file: LintContext) -> str:
    return file.table.backend if file.table is not None else "the target"


def _activation_type(file: LintContext) -> Iterator[Found]:
    yield from _storage(file, weights=False)


def _weight_type(file: LintContext) -> Iterator[Found]:
    yield from _storage(file, weights=True)


def _zero_point(file: LintContext) -> Iterator[Found]:
    for place, quantizer, spec in _pairs(file):
        zero, have = quantizer.qparams.zero_point, quantizer.qparams.qtype
        if not spec.symmetric or have.is_float or have.storage != spec.qtype.storage:
            continue
        middle = have.middle
        if (zero != middle).any():
            worst = int(zero.ravel()[np.abs(zero.ravel() - middle).argmax()])
            text = f"zero point {worst}; {_name(file)} takes {middle} alone for {place.edge.rule}"
            yield Found(text, place.node, quantizer.tensor)


def _granularity(file: LintContext) -> Iterator[Found]:
    for place, quantizer, spec in _pairs(file):
        have, want = quantizer.qparams.axis, spec.axis
        if quantizer.qparams.block_size != spec.block_size:
            text = f"blocks of {quantizer.qparams.block_size or 'no size'}; {_name(file)} wants {spec.block_size or 'none'}"
            yield Found(text, place.node, quantizer.tensor)
        elif have is not None and want is None and quantizer.qparams.scale.size > 1:
            text = f"one scale for each index of axis {have}; {_name(file)} takes one a tensor for {place.edge.rule}"
            yield Found(text, place.node, quantizer.tensor)
        elif have is not None and want is not None and have != want:
            text = f"scales along axis {have}; {_name(file)} takes axis {want} for {place.edge.rule}"
            yield Found(text, place.node, quantizer.tensor)
        elif have is None and want is not None:
            yield Found(
                f"one scale a tensor; {_name(file)} can have one a channel", place.node, quantizer.tensor, "note"
            )


def _width(file: LintContext) -> Iterator[Found]:
    for place, quantizer, spec in _pairs(file):
        have, want = quantizer.qparams.qtype, spec.qtype
        if have.is_float or want.is_float or have.storage != want.storage:
            continue
        channels = saturation.channels(quantizer) if spec.saturates else 0
        if channels:
            yield Found(_saturating(channels), place.node, quantizer.tensor)
        if want.quant_min <= have.quant_min and have.quant_max <= want.quant_max:
            continue
        used = _used_codes(quantizer)
        if used is not None and want.quant_min <= used[0] and used[1] <= want.quant_max:
            continue
        low, high = used or (have.quant_min, have.quant_max)
        text = f"codes {low}..{high}; the table of {_name(file)} has {want.quant_min}..{want.quant_max}"
        if (want.quant_min, want.quant_max) == SEVEN_BITS:
            text += ", since processors without VNNI (saturating 16-bit sums) give other results"
        yield Found(text, place.node, quantizer.tensor)
    yield from _width_on_codes(file)


def _width_on_codes(file: LintContext) -> Iterator[Found]:
    """The same of operators on codes, for which a table has no rows."""
    if file.table is None or not any(kind.saturates or kind.reduce_range for kind in file.table.types.values()):
        return
    for node in file.nodes:
        channels = saturation.channels_on_codes(node)
        if channels:
            yield Found(_saturating(channels), node)


def _saturating(channels: int) -> str:
    return f"products of codes saturate in {channels} channel{'s'[: channels > 1]} on processors without VNNI"


def _used_codes(quantizer: Quantizer) -> tuple[int, int] | None:
    """Smallest and largest code of a constant."""
    codes = _codes(quantizer)
    return None if codes is None or not codes.size else (int(codes.min()), int(codes.max()))


def _codes(quantizer: Quantizer) -> np.ndarray | None:
    """Codes of a constant, int64."""
    if quantizer.stored:
        found = query.constant_array(quantizer.input)
        return None if found is None else np.asarray(found).astype(np.int64)
    values, axis = constant_values(quantizer), quantizer.qparams.axis
    if values is None or (axis is not None and values.shape[axis] != quantizer.qparams.scale.size):
        return None
    return numerics.quantize(values, quantizer.qparams)


def _power_of_two(file: LintContext) -> Iterator[Found]:
    for place, quantizer, spec in _pairs(file):
        if spec.scale_bits != 1:
            continue
        mantissa, _ = np.frexp(np.abs(quantizer.qparams.scale))
        wrong = int((mantissa != 0.5).sum())
        if wrong:
            share = "" if mantissa.size == 1 else f" ({wrong} of {mantissa.size})"
            scale = float(quantizer.qparams.scale.ravel()[(mantissa != 0.5).ravel().argmax()])
            yield Found(f"scale {scale:.6g}{share} is no power of two", place.node, quantizer.tensor)


def _fixed(file: LintContext) -> Iterator[Found]:
    for place in compared(file):
        if not isinstance(place.spec, Fixed):
            continue
        want = place.spec.qparams
        for quantizer in place.present:
            have = quantizer.qparams
            same = np.allclose(have.scale, want.scale, rtol=1e-6) and np.array_equal(have.zero_point, want.zero_point)
            if have.qtype.storage == want.qtype.storage and not same:
                text = (
                    f"scale {float(have.scale.ravel()[0]):.6g}, zero point {int(have.zero_point.ravel()[0])}; {_name(file)} "
                    f"has {float(want.scale):.6g} and {int(want.zero_point)} for {place.edge.rule}"
                )
                yield Found(text, place.node, quantizer.tensor)


RULES = (
    Rule(
        code="target-activation-type",
        severity="error",
        defect="an activation has another type than the target takes",
        reason="the target refuses the file, or runs the operator in float",
        remedy="insert-qdq --replace for this target, or `--activation-type` where the target takes several",
        source="backend table, types and ops; its facts",
        check=_activation_type,
        target=True,
    ),
    Rule(
        code="target-weight-type",
        severity="error",
        defect="a weight has another type than the target takes",
        reason="the target refuses the file, or runs the layer in float",
        remedy="insert-qdq --replace for this target",
        source="backend table, types and ops; its facts",
        check=_weight_type,
        target=True,
    ),
    Rule(
        code="target-zero-point",
        severity="error",
        defect="a zero point, where the target takes symmetric quantizers alone",
        reason="TensorRT: `Non-zero zero point is not supported`; OpenVINO runs such a deconvolution in float",
        remedy="insert-qdq --replace for this target; 0 for signed codes, the middle for unsigned ones",
        source="backend table, types, key symmetric; NVIDIA/TensorRT#2774",
        check=_zero_point,
        target=True,
    ),
    Rule(
        code="target-granularity",
        severity="error",
        defect="scales a channel where the target takes one a tensor, or along another axis, or in other blocks",
        reason="the target refuses the file, or runs the layer in float",
        remedy="insert-qdq --replace for this target",
        source="backend table, types, key granularity, and the axis in ops",
        check=_granularity,
        target=True,
    ),
    Rule(
        code="target-width",
        severity="warning",
        defect="codes outside the range of the target's table, or whose products saturate on processors of the target",
        reason="8-bit weights saturate in 16-bit sums on CPUs without VNNI (off by 0.8 in OpenVINO); narrower types are cut off",
        remedy="insert-qdq --safe-range for 8-bit weights; --bits for narrower types",
        source="backend table, types, keys bits, qrange, reduce_range and saturates; microsoft/onnxruntime#6004, openvinotoolkit/nncf#1568",
        check=_width,
        target=True,
    ),
    Rule(
        code="target-power-of-two",
        severity="error",
        defect="a scale is no power of two, and the target can only shift",
        reason="`Only power-of-two scale factors are supported`, or the nearest power is taken silently",
        remedy="insert-qdq --replace for this target, or --exact",
        source="backend table, types, key scale: pow2; Xilinx/brevitas#343",
        check=_power_of_two,
        target=True,
    ),
    Rule(
        code="target-fixed",
        severity="warning",
        defect="an output has other parameters than the target prescribes for its operator",
        reason="the kernel gives results on its own grid: they are off by the ratio, or requantized",
        remedy="insert-qdq --replace for this target",
        source="backend table, ops, key fixed; TensorFlow quantization_spec",
        check=_fixed,
        target=True,
    ),
)
