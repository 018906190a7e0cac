"""Scales and zero points from a plan and observed ranges; groups share theirs, biases stay inside int32."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from onnxqat import numerics
from onnxqat.calibration import saturation
from onnxqat.calibration.channel_peaks import Peaks
from onnxqat.calibration.exact import shift_limits, tie_free_means, tie_free_sums
from onnxqat.calibration.largest_codes import ByNode
from onnxqat.calibration.observers import joined
from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.calibration.weights import weight_qparams
from onnxqat.graph import query, walk
from onnxqat.placement import given_encodings
from onnxqat.placement.given_encodings import Given
from onnxqat.types import (
    STORAGE,
    BiasPlacement,
    Derived,
    Edge,
    Fixed,
    Float,
    Placement,
    QParams,
    QuantPlan,
    RedundantClip,
    Remark,
    Shared,
    TensorSpec,
)

ACCUMULATOR = 32
BIAS_CODE_MARGIN = 1 - 2.0**-23  # float32 rounds the scale, its product and the quotient: 127 codes of 2**31 in all
BIAS_SHARE = 0.5
"""Share of an int32 accumulator for the bias: a sum that wraps around has the other sign. The rest holds the products of
33,000 weights and activations of 8 bits."""


@dataclasses.dataclass(frozen=True)
class Resolved:
    """A plan with parameters.

    Attributes:
        placements: quantizers.
        biases: what is put on the grids of accumulators.
        remarks: what was found on the way.
        largest_codes: by layer, the input codes for which weight scales were chosen so that no sum saturates.
        given: names of tensors for which the user brings encodings; nothing changes those.
    """

    placements: tuple[Placement, ...]
    biases: tuple[BiasPlacement, ...]
    remarks: tuple[Remark, ...]
    largest_codes: ByNode = dataclasses.field(default_factory=dict)
    given: frozenset[str] = frozenset()

    def with_grids(self, grids: Mapping[str, QParams]) -> Resolved:
        """The same with other parameters for the weights that `grids` names."""
        placed = (
            p if p.group is not None or p.tensor not in grids else dataclasses.replace(p, qparams=grids[p.tensor])
            for p in self.placements
        )
        return dataclasses.replace(self, placements=tuple(placed)) if grids else self


def resolve(
    plan: QuantPlan,
    observers: Mapping[str, BaseObserver],
    model: ir.Model,
    peaks: Peaks | None = None,
    given: Given | None = None,
) -> Resolved:
    """Parameters for every edge of `plan`.

    Args:
        plan: of :func:`onnxqat.placement.planner.plan`.
        observers: one for each activation tensor that the plan gives a TensorSpec or ties to one.
        model: the prepared float model; constants are read from it.
        peaks: how large the inputs of layers get whose kernels saturate.
        given: encodings that the user brings; nothing changes them.
    """
    remarks: list[Remark] = []
    constants = {name: np.asarray(t.numpy()) for name, t in _constants(model, plan)}
    roots = _group_parameters(plan, observers, remarks)
    placements = [
        p for edge in plan.edges if (p := _placement_of(edge, roots, observers, constants, remarks)) is not None
    ]
    placements = _cut_saturated(plan, placements, observers)
    placements, clip_remarks = _tie_needed_clips(plan, placements)
    placements, largest, range_remarks = saturation.keep_in_limits(plan, placements, constants, model, peaks or {})
    placements, bias_remarks = _keep_bias_in_range(plan, placements, constants, model)
    if plan.tie_free_sums:
        placements = tie_free_means.center(plan, placements)
    placements, shift_remarks = shift_limits.keep_in_limits(plan, placements)
    if plan.tie_free_sums:
        placements = tie_free_sums.whole_shifts(plan, tie_free_means.offset_scales(plan, placements), constants)
    placements = _as_given(plan, placements, given or {})
    biases = tuple(
        BiasPlacement(edge.consumers[0][0], edge.decision.storage, edge.rule)
        for edge in plan.edges
        if isinstance(edge.decision, Derived) and edge.consumers
    )
    return Resolved(
        tuple(placements),
        biases,
        (*_together(remarks), *clip_remarks, *range_remarks, *_together(bias_remarks), *shift_remarks),
        largest,
        frozenset(given or ()),
    )


def _together(remarks: Iterable[Remark]) -> list[Remark]:
    """Remarks of the form "what: of what", those with the same "what" as one."""
    found: dict[str, list[Remark]] = {}
    for remark in remarks:
        found.setdefault(remark.message.partition(": ")[0], []).append(remark)
    return [
        dataclasses.replace(
            same[0],
            message=f"{what}: {', '.join(r.message.partition(': ')[2] for r in same)}",
            nodes=tuple(name for r in same for name in r.nodes),
        )
        for what, same in found.items()
    ]


def _as_given(plan: QuantPlan, placements: list[Placement], given: Given) -> list[Placement]:
    """Quantizers with the encodings that the user brings, whatever the steps before made of them."""
    if not given:
        return placements
    members: dict[str, list[str]] = {}
    for placement in placements:
        if placement.group is not None:
            members.setdefault(placement.group, [placement.group]).append(placement.tensor)
    specs = given_encodings.specs_of(plan)
    result = []
    for placement in placements:
        tensors = members.get(placement.group or "", [placement.tensor])
        spec = next((s for s in specs.get(placement.tensor, ()) if s.qtype == placement.qparams.qtype), None)
        qparams = None if spec is None else given_encodings.of(given, tensors, spec)
        result.append(placement if qparams is None else dataclasses.replace(placement, qparams=qparams))
    return result


def tensors_to_observe(plan: QuantPlan) -> dict[str, TensorSpec]:
    """Activation tensors whose range the plan needs, with the spec that they are observed for."""
    # A tensor that two consumers want on two grids is observed for the first, which is the one that groups share.
    wanted: dict[str, TensorSpec] = {}
    for edge in plan.edges:  # a constant may be the weight of one node and an activation of another, such as Gather
        if isinstance(edge.decision, TensorSpec) and edge.decision.role == "activation":
            wanted.setdefault(edge.tensor, edge.decision)
    shared = [(edge.tensor, edge.decision.root) for edge in plan.edges if isinstance(edge.decision, Shared)]
    roots = {root for _, root in shared}
    for tensor, root in shared:
        # A root that one reader takes on the grid of another group, as a Concat does, keeps its spec for its own group.
        if root in wanted and not (tensor in roots and tensor in wanted):
            wanted[tensor] = wanted[root]
    return wanted


def _constants(model: ir.Model, plan: QuantPlan) -> list[tuple[str, ir.TensorProtocol]]:
    names = {e.tensor for e in plan.edges}
    found = ((str(v.name), query.constant_tensor(v)) for v in _values(model) if v.name in names)
    return [(name, tensor) for name, tensor in found if tensor is not None]


def _values(model: ir.Model) -> list[ir.Value]:
    # A function body may repeat a name of the main graph: what comes last wins where names are looked up.
    return [v for scope in reversed(list(walk.scopes(model))) for v in walk.values(scope)]


def _group_parameters(
    plan: QuantPlan, observers: Mapping[str, BaseObserver], remarks: list[Remark]
) -> dict[str, QParams]:
    members: dict[str, list[str]] = {}
    for edge in plan.edges:
        if isinstance(edge.decision, Shared):
            members.setdefault(edge.decision.root, []).append(edge.tensor)
    result: dict[str, QParams] = {}
    for root, others in members.items():
        if root not in observers:
            continue
        merged = joined(observers[root], [observers[other] for other in others if other in observers])
        result[root] = _checked(root, merged, remarks)
    return result


def _checked(tensor: str, observer: BaseObserver, remarks: list[Remark]) -> QParams:
    low, high = observer.range()
    if not np.any(low) and not np.any(high):
        remarks.append(Remark(f"always zero, so that the scale is 1: {tensor!r}", (tensor,), "calibrate"))
    return observer.qparams()


def _placement_of(
    edge: Edge,
    roots: Mapping[str, QParams],
    observers: Mapping[str, BaseObserver],
    constants: Mapping[str, np.ndarray],
    remarks: list[Remark],
) -> Placement | None:
    """Return an edge's placement, with qparams given, shared or from its observer; None where it is float."""
    decision = edge.decision
    if isinstance(decision, (Derived, Float)):
        return None
    if isinstance(decision, Shared):
        return Placement(edge.tensor, roots[decision.root], edge.rule, edge.consumers, decision.root)
    if isinstance(decision, Fixed):
        return Placement(edge.tensor, decision.qparams, edge.rule, edge.consumers, prescribed=decision.prescribed)
    if edge.tensor in roots and decision == observers[edge.tensor].spec:
        return Placement(edge.tensor, roots[edge.tensor], edge.rule, edge.consumers, edge.tensor)
    if decision.role == "weight":
        qparams = _weight(edge.tensor, constants[edge.tensor], decision, remarks)
    else:
        qparams = _checked(edge.tensor, observers[edge.tensor].for_spec(decision), remarks)
    return Placement(edge.tensor, qparams, edge.rule, edge.consumers)


def _weight(tensor: str, values: np.ndarray, spec: TensorSpec, remarks: list[Remark]) -> QParams:
    """Weight parameters; a channel that is all zero takes the middle scale of the others, which keeps its bias fine."""
    qparams = weight_qparams(values, spec)
    if spec.axis is None or spec.block_size is not None:
        return qparams
    other_axes = tuple(i for i in range(values.ndim) if i != spec.axis)
    dead = ~values.any(axis=other_axes)
    if not dead.any() or dead.all():
        return qparams
    middle = numerics.shorten(np.asarray(np.median(qparams.scale[~dead])), spec.scale_bits)
    scale = np.where(dead, np.float32(middle), qparams.scale)
    remarks.append(
        Remark(f"output channels that are all zero: {int(dead.sum())} of {tensor!r}", (tensor,), "calibrate")
    )
    return dataclasses.replace(qparams, scale=np.asarray(scale, np.float32))


def _cut_saturated(
    plan: QuantPlan, placements: list[Placement], observers: Mapping[str, BaseObserver]
) -> list[Placement]:
    """Cut ranges to the values that consumers tell apart; members of a group keep the group's range."""
    useful = {r.tensor: r for r in plan.useful_ranges}
    specs = {e.tensor: e.decision for e in plan.edges if isinstance(e.decision, TensorSpec)}
    result = []
    for placement in placements:
        found, spec = useful.get(placement.tensor), specs.get(placement.tensor)
        if found is not None and spec is not None and spec.role == "activation" and placement.group is None:
            observer = observers[placement.tensor].for_spec(spec)
            low, high = observer.range()
            qparams = numerics.from_range(
                np.asarray(np.clip(low, found.low, found.high), np.float32),
                np.asarray(np.clip(high, found.low, found.high), np.float32),
                spec.but(axis=None, scale_bits=observer.scale_bits),
            )
            placement = dataclasses.replace(placement, qparams=qparams)
        result.append(placement)
    return result


def _tie_needed_clips(plan: QuantPlan, placements: list[Placement]) -> tuple[list[Placement], list[Remark]]:
    """Keep each Relu or Clip whose bounds the quantizer behind it does not repeat, by a pair in front of it too.

    Both pairs share their parameters, so that a kernel that drops the activation gives the same codes. Where the range
    can be fitted to end at the bounds of the clip, no second pair is needed.
    """
    by_tensor = {p.tensor: p for p in reversed(placements) if p.consumers is None}
    remarks: list[Remark] = []
    extra: list[Placement] = []
    replaced: dict[str, Placement] = {}
    for clip in plan.redundant_clips:
        placed = by_tensor.get(clip.output)
        if placed is None:
            continue
        qparams = _fit(placed.qparams, clip)
        if plan.tie_free_sums and not _repeats(qparams, clip):
            qparams = _between_powers(qparams, clip)
        if _repeats(qparams, clip):
            if qparams is not placed.qparams:
                replaced[placed.group or placed.tensor] = dataclasses.replace(placed, qparams=qparams)
            continue
        root = placed.group or placed.tensor
        extra.append(
            Placement(clip.interior, placed.qparams, "activation that the quantizer does not repeat", None, root)
        )
        remarks.append(
            Remark(
                f"{clip.interior!r} is quantized before its activation, with the parameters of {clip.output!r}",
                (),
                "resolve",
            )
        )
    grouped = {p.group for p in extra}
    result = []
    for p in placements:
        root = p.group or p.tensor
        if root in replaced and p.qparams is by_tensor.get(p.tensor, p).qparams:
            p = dataclasses.replace(p, qparams=replaced[root].qparams)
        if p.group is None and p.tensor in grouped and p.consumers is None:
            p = dataclasses.replace(p, group=p.tensor)
        result.append(p)
    return result + extra, remarks


def _bounds(qparams: QParams) -> tuple[float, float]:
    low, high, _ = STORAGE[qparams.qtype.storage]
    codes = np.asarray([low, high], np.int64) - int(qparams.zero_point)
    values = codes.astype(np.float32) * np.float32(qparams.scale)
    return float(values[0]), float(values[1])


def _repeats(qparams: QParams, clip: RedundantClip) -> bool:
    """Check, as onnxruntime does, whether everything that the codes can represent lies inside the clip."""
    low, high = _bounds(qparams)
    return clip.low <= low and high <= clip.high


def _fit(qparams: QParams, clip: RedundantClip) -> QParams:
    """Lower the scale by the few units in the last place by which its rounding exceeds the clip."""
    scale = np.float32(qparams.scale)
    for _ in range(4 if qparams.scale_bits is None else 0):
        candidate = dataclasses.replace(qparams, scale=np.asarray(scale))
        if _repeats(candidate, clip):
            return candidate if scale != qparams.scale else qparams
        scale = np.nextafter(scale, np.float32(0))
    return qparams


def _between_powers(qparams: QParams, clip: RedundantClip) -> QParams:
    """Three quarters of a power-of-two scale where that repeats the clip and cuts no whole step: 6 is 256 / 2**7 * 3."""
    scale = np.asarray(qparams.scale * np.float32(0.75), np.float32)
    candidate = dataclasses.replace(qparams, scale=scale, scale_bits=2)
    covers = _bounds(candidate)[1] >= clip.high - 1.01 * float(scale) or clip.high == np.inf
    return candidate if qparams.scale_bits == 1 and covers and _repeats(candidate, clip) else qparams


def _keep_bias_in_range(
    plan: QuantPlan, placements: list[Placement], constants: Mapping[str, np.ndarray], model: ir.Model
) -> tuple[list[Placement], list[Remark]]:
    """Raise weight scales so that ``|bias| / (activation scale x weight scale)`` fits the accumulator."""
    position = {(name, index): i for i, p in enumerate(placements) for name, index in p.consumers or ()}
    anywhere = {p.tensor: i for i, p in enumerate(placements) if p.consumers is None}
    moved_from = _moved_from(plan, model)
    remarks: list[Remark] = []
    for edge in plan.edges:
        if not isinstance(edge.decision, Derived) or not edge.consumers:
            continue
        node, source = edge.consumers[0][0], edge.decision.activation
        while source not in anywhere and source in moved_from:
            source = moved_from[source]
        x = position.get((node, 0), anywhere.get(source))
        w = position.get((node, 1))
        if x is None or w is None or edge.tensor not in constants:
            continue
        weight = placements[w].qparams
        bias = np.abs(constants[edge.tensor].astype(np.float64))
        # Narrower ones hold the bias alone.
        share = BIAS_SHARE if edge.decision.bits == ACCUMULATOR else BIAS_CODE_MARGIN
        largest = share * 2.0 ** (edge.decision.bits - 1)
        smallest = bias / (float(placements[x].qparams.scale) * largest)
        smallest = (
            smallest if weight.axis is not None and smallest.shape == weight.scale.shape else smallest.max(initial=0)
        )
        if np.any(weight.scale < smallest):
            scale = np.maximum(weight.scale, smallest.astype(np.float32))
            scale = numerics.shorten(scale, weight.scale_bits).astype(np.float32)
            placements[w] = dataclasses.replace(placements[w], qparams=dataclasses.replace(weight, scale=scale))
            text = f"weight scales were raised so that the bias fits {_bias_type(edge.decision)}: {node!r}"
            remarks.append(Remark(text, (node,), "resolve"))
    return placements, remarks


def _moved_from(plan: QuantPlan, model: ir.Model) -> dict[str, str]:
    """The tensor that each bare tensor of `plan` was moved from, whose grid it lies on."""
    bare = set(plan.bare)
    # What makes values of nothing, such as Constant or RandomNormal, has no inputs.
    moving = [node for node in walk.nodes(model) if node.inputs]
    pairs = ((str(output.name), node.inputs[0]) for node in moving for output in node.outputs)
    return {name: str(source.name) for name, source in pairs if name in bare and source is not None}


def _bias_type(derived: Derived) -> str:
    return "int32" if derived.bits == 32 else f"{derived.bits} bits"
