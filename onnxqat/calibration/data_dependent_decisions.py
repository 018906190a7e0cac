"""Findings of calibration that change the plan and that the graph alone does not show."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.calibration import row_dynamic_range, runtime_masks, taken_branches
from onnxqat.calibration.mixed_range import mixed_range
from onnxqat.calibration.row_dynamic_range import RowSizes
from onnxqat.calibration.runner import Observed
from onnxqat.graph import walk
from onnxqat.types import Remark

UNTAKEN = "no calibration batch takes this branch"
ROWS = "the rows that it reads differ too much in size for one scale, and a normalization behind it would show that"


@dataclasses.dataclass(frozen=True)
class Findings:
    """Changes that the plan has to make for what the data showed.

    Attributes:
        left_out: node name to the reason why it stays float.
        mixed_range: Concat nodes whose inputs have ranges too different for one scale, each with the widest input.
        masked: names of tensors that are masks.
        remarks: for the report, those of the runner included.
    """

    left_out: dict[str, str]
    mixed_range: dict[str, str]
    masked: frozenset[str]
    remarks: tuple[Remark, ...]


def find(model: ir.Model, observers: Observed, sizes: dict[str, RowSizes]) -> Findings:
    """Derive findings from the observers and row sizes that the float `model` filled on the calibration data.

    Args:
        model: as it was planned for.
        observers: of the tensors that the plan wants observed.
        sizes: of the rows of tensors that normalized layers read.
    """
    graphs = list(dataflow.reached_graphs(model.graph))
    untaken = [graph for graph in graphs[1:] if _never_ran(graph, observers)]
    unseen = {v.name for graph in untaken for v in walk.outputs(graph)}
    unfit = row_dynamic_range.unfit_layers(model, sizes, observers)
    mixed = [mixed_range(graph, observers) for graph in graphs]
    remarks = [r for r in observers.remarks if not (r.nodes and unseen.issuperset(r.nodes))]
    remarks += [remark for _, those in mixed for remark in those]
    remarks += taken_branches.remarks(model, observers.conditions, [n for n, seen in observers.items() if seen.count])
    masked, those = runtime_masks.find(model, observers, observers.infinite)
    remarks += those
    if unfit:
        remarks.append(Remark(f"layers stay float: {ROWS}", tuple(unfit), "calibrate"))
    left_out = dict.fromkeys(unfit, ROWS) | {str(node.name): UNTAKEN for graph in untaken for node in graph}
    concats = {name: widest for names, _ in mixed for name, widest in names.items()}
    return Findings(left_out, concats, masked, tuple(remarks))


def _never_ran(branch: ir.Graph, observers: Observed) -> bool:
    """Check whether tensors of `branch` were observed but never held a value: ranges for them would be invented."""
    seen = [observers[str(v.name)].count for v in walk.outputs(branch) if str(v.name) in observers]
    return bool(seen) and not any(seen)
