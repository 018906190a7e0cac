"""Concat nodes that join tensors of very different ranges, such as boxes and scores of a detector."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxqat.analysis import dataflow
from onnxqat.calibration.observers._base import BaseObserver
from onnxqat.types import Remark

RATIO = 100.0  # between any two inputs of a Concat
RATIO_AT_OUTPUT = 4.0  # where only data movement separates the Concat from a graph output


def mixed_range(graph: ir.Graph, observers: Mapping[str, BaseObserver]) -> tuple[dict[str, str], list[Remark]]:
    """Names of Concat nodes that one scale would ruin, each with its input of the largest range, and remarks.

    With boxes in 0..640 and scores in 0..1 under one 8-bit scale every score becomes 0. At a graph output, where
    nothing behind can make up for the loss, a smaller ratio counts.
    """
    found: dict[str, str] = {}
    remarks: list[Remark] = []
    for node in graph:
        if node.op_type != "Concat" or node.domain:
            continue
        spans = {
            str(v.name): span(observers[str(v.name)]) for v in node.inputs if v is not None and v.name in observers
        }
        spans = {name: s for name, s in spans.items() if s > 0}
        if len(spans) < 2:
            continue
        ratio = max(spans.values()) / min(spans.values())
        if ratio > (RATIO_AT_OUTPUT if any(map(dataflow.leads_to_output, node.outputs)) else RATIO):
            found[str(node.name)] = max(spans, key=spans.__getitem__)
            remarks.append(
                Remark(
                    f"Concat {node.name!r} stays float: the ranges of its inputs differ by a factor of {ratio:.0f}",
                    (str(node.name),),
                    "calibrate",
                )
            )
    return found, remarks


def span(observer: BaseObserver) -> float:
    """The largest magnitude that `observer` covers."""
    low, high = observer.range()
    return float(np.max(np.maximum(np.abs(low), np.abs(high)), initial=0.0))
