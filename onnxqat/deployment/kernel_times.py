"""Times of kernels, as a compiler's profiler tells them, by the nodes of the model that they compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from onnxqat.graph.layers import LAYERS

RUNS = 20
"""Runs that are timed. The fastest counts: whatever else the machine does can only add to it."""


def by_node(
    runs: Mapping[str, Sequence[float]], computed: Mapping[str, Sequence[onnx.NodeProto]]
) -> tuple[dict[str, float], float]:
    """Give the time of each kernel to the layer among the nodes that were fused into it, or to the first of them.

    Args:
        runs: seconds of each run by kernel.
        computed: nodes that a kernel computes; none for one that only converts.

    Returns:
        Seconds by name of a node, and of all kernels together.
    """
    times: dict[str, float] = {}
    fastest = {kernel: min(found) for kernel, found in runs.items()}
    for kernel, seconds in fastest.items():
        nodes = computed.get(kernel, ())
        owner = next((n for n in nodes if n.op_type in LAYERS), next(iter(nodes), None))
        if owner is not None:
            times[owner.name] = times.get(owner.name, 0.0) + seconds
    return times, sum(fastest.values())
