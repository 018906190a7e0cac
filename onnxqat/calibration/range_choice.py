"""The choice among the candidate ranges of ``auto`` observers, by the errors that they lead to."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.calibration import output_error
from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.calibration.observers.auto import BEHIND, NAMES, Observer
from onnxqat.calibration.range_group import Group
from onnxqat.data.data import Data
from onnxqat.errors import ModelError
from onnxqat.graph import walk
from onnxqat.runtime import vendor_operators
from onnxqat.types import QuantPlan, Remark, Shared, TensorSpec

BETTER = 0.98
"""Share of the error of a wider range that a narrower one must stay below: less is within what other samples change."""

DROWNED = 0.5
"""Error at an output, as a share of its power, from which less of it tells nothing: zeros everywhere have 1."""

RESOLUTION = 2.0
"""Factor on the LSB that a range of values that leave the model may have to be whole: one bit of resolution."""

FULL = 8
"""Fewest bits of which one may go to values that are rare."""


def choose(
    model: ir.Model, plan: QuantPlan, observers: Mapping[str, BaseObserver], data: Data | None, work: float = 0.0
) -> tuple[Remark, ...]:
    """Let each ``auto`` observer take the candidate that costs least.

    All start with the range of least squared error. Those that then cost the outputs of the network most take the
    candidate with the least error there (:mod:`onnxqat.calibration.output_error`). Where one observer for all of them
    does better than that, all have it. Values that leave the model keep their range, or as much of it as :data:`RESOLUTION`
    allows.

    Args:
        model: the prepared float model; it is not changed.
        plan: which tensors get parameters, and which share them.
        observers: of the tensors of ``resolve.tensors_to_observe(plan)``; their choice is set in place.
        data: calibration data; without, or where it can be read only once, the choice stays ``mse``.
        work: expected seconds of a run of one sample.

    Returns:
        What was chosen, or why nothing could be.
    """
    groups = [group for group in _groups(plan, observers) if len(group.candidates) > 1]
    if data is None or not groups:
        return ()
    reason = _choose_at_outputs(model, groups, data, work)
    _take_whole(_leaving(groups, model))
    if reason:
        return (Remark(f"{len(groups)} ranges were chosen by their own mean squared error: {reason}", (), "calibrate"),)
    counts = Counter(group.choice for group in groups)
    found = ", ".join(f"{name} {count}" for name, count in counts.most_common())
    return (Remark(f"activation ranges by the error at the outputs: {found}", (), "calibrate"),)


def _choose_at_outputs(model: ir.Model, groups: Sequence[Group], data: Data, work: float) -> str:
    """Let `groups` take what costs the outputs least; the reason why that cannot be told, empty where it can."""
    if not data.repeatable:
        return "the data can be read only once"
    try:
        network = output_error.Network(vendor_operators.runnable_part(model), groups, data, work)
        if network.parts:
            _take_least(groups, output_error.errors(network, groups))
            _take_one_for_all(groups, network)
    except ModelError as error:
        return error.message
    return ""


def _take_least(groups: Sequence[Group], errors: npt.NDArray[np.float64]) -> None:
    """Choose the candidate of least error, the widest of those that are about as good; NaN leaves a choice as it is.

    Args:
        groups: tensors that share a range each.
        errors: (groups, candidates), NaN where nothing was measured.
    """
    for group, row in zip(groups, errors, strict=True):
        best = None
        for index, error in enumerate(row[: len(group.candidates)]):
            if np.isfinite(error) and (best is None or error < BETTER * row[best]):
                best = index
        if best is not None:
            group.take(list(group.candidates)[best])


def _leaving(groups: Sequence[Group], model: ir.Model) -> list[Group]:
    """Those of `groups` with a tensor that only data movement separates from an output, on grids with a bit to spare."""
    names = {str(v.name) for v in walk.outputs(walk.nodes(model)) if dataflow.leads_to_output(v)}
    return [g for g in groups if g.chosen.qtype.bits >= FULL and not names.isdisjoint(name for name, _ in g.members)]


def _take_whole(groups: Sequence[Group]) -> None:
    """Choose the widest range whose LSB is at most :data:`RESOLUTION` times that of the choice so far.

    What is cut of a value that leaves the model is an error that users read, however large it is, and the squared errors
    of all values hardly show it: at the outputs of a YOLOX-Nano that cut .01 % of their values, the sizes of the largest
    boxes, mAP 50-95 is .27 in place of .33, with the same noise.
    """
    for group in groups:
        most = RESOLUTION * group.chosen.scale
        group.take(next(name for name, grid in group.candidates.items() if (grid.scale <= most).all()))


def _take_one_for_all(groups: Sequence[Group], network: output_error.Network) -> None:
    """Choose one observer for all groups where that leaves less error with all of them on their grids.

    What is least for each tensor alone need not be for all together: with few bits the errors are no small change any
    more (ResNet-20, W4A4, 512 images: 7.5 dB at the logits, and 9.1 with one percentile for all). At any width a range that
    cut nothing of the few samples that the tensors were tried on may cut others.
    """
    numbered = dict(enumerate(groups))
    least = network.error_on_more({row: group.chosen for row, group in numbered.items()})
    best = None
    for names in _one_for_all(groups):
        error = network.error_on_more({row: group.grid(names[row]) for row, group in numbered.items()})
        if error < min(BETTER * least, DROWNED * network.parts):
            least, best = error, names
    if best is not None:
        for group, name in zip(groups, best, strict=True):
            group.take(name)


def _one_for_all(groups: Sequence[Group]) -> Iterator[list[str]]:
    """The observer of each group, where all have one; and where those that a function reads have the one behind it."""
    for name in NAMES:
        yield [name] * len(groups)
        behind = [BEHIND if BEHIND in group.candidates else name for group in groups]
        if BEHIND in behind and name != BEHIND:
            yield behind


def _groups(plan: QuantPlan, observers: Mapping[str, BaseObserver]) -> list[Group]:
    """The groups whose root has an ``auto`` observer that saw values."""
    members: dict[str, list[tuple[str, frozenset[tuple[str, int]] | None]]] = {}
    for edge in plan.edges:
        root = edge.decision.root if isinstance(edge.decision, Shared) else edge.tensor
        if isinstance(edge.decision, (Shared, TensorSpec)) and isinstance(observers.get(root), Observer):
            members.setdefault(root, []).append(
                (edge.tensor, None if edge.consumers is None else frozenset(edge.consumers))
            )
    groups: dict[tuple[object, ...], Group] = {}
    for root, edges in members.items():
        observer = observers[root]
        assert isinstance(observer, Observer)
        merged = observer.for_spec(observer.spec, own=True)
        for name in {name for name, _ in edges if name != root and name in observers}:
            merged.merge(observers[name].for_spec(merged.spec))
        assert isinstance(merged, Observer)
        if merged.count and merged.spec.axis is None:
            found = Group((observer,), merged, merged.candidates(), tuple(edges))
            same = groups.get(key := _values_of(found), found)
            both = (*same.roots, observer), (*same.members, *edges)
            groups[key] = found if same is found else dataclasses.replace(same, roots=both[0], members=both[1])
    return list(groups.values())


def _values_of(group: Group) -> tuple[object, ...]:
    """Key that is equal for observers that saw the same values, and hardly ever for others."""
    grids = ((name, q.scale.tobytes(), q.zero_point.tobytes()) for name, q in group.candidates.items())
    return (group.roots[0].spec, group.roots[0].count, *grids)
