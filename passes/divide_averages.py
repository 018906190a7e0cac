"""An AveragePool of one window becomes a GlobalAveragePool, where the target's pool misses ties."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log
from onnxqat.passes._setting import Setting
from onnxqat.placement.table_overrides import NodeSelection

POOLS = ("AveragePool", "GlobalAveragePool")
CODES = 256
"""Codes of a byte: means of more have the same ties, and these are all of them in a byte."""


class DivideAverages(Pass):
    """An AveragePool with one window becomes a GlobalAveragePool, behind a Slice where the window leaves some of the map over.

    With ``--exact`` and a table whose pool `meets_ties`: OpenVINO's integer pool (2026.4) and those of onnxruntime (1.32)
    multiply the sum of a window by the float32 next to 1/N. For some N, such as 120 and 14, a mean half-way between two
    codes then comes out an ulp above or below, and rounds to the other code: 40 % of the ties of 24 x 5. OpenVINO's
    GlobalAveragePool divides.

    1. Left alone: N whose float32 reciprocal keeps every tie, such as 9, 12, 49 and powers of two.
    2. Left alone with a remark, since a tie may come out an LSB off: several windows, dilation, sizes that are not known,
       and a target whose GlobalAveragePool meets ties as well.

    Tolerance: float rounding, 1e-6 of the output's range. ::

        y = AveragePool <kernel_shape = [24, 5], strides = [24, 5]> (x)                     # x: 1, 64, 25, 5
        y_window = Slice(x, [0, 0], [24, 5], [2, 3])   y = GlobalAveragePool(y_window)
    """

    def __init__(
        self, losing: Collection[str] = ("AveragePool",), *, mends: bool = True, selection: NodeSelection | None = None
    ) -> None:
        """Set what the target does.

        Args:
            losing: pools whose kernel loses ties.
            mends: GlobalAveragePool keeps them, and may stand for AveragePool.
            selection: nodes that stay in float.
        """
        self.losing, self.mends, self.selection = frozenset(losing), mends, selection

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run with ``--exact`` where pools multiply by a float factor and may meet ties."""
        rows = {name: row for name in POOLS if (row := setting.table.ops.get(name)) is not None}
        losing = [name for name, row in rows.items() if row.meets_ties]
        if not setting.overrides.exact or setting.table.exact != "short" or not losing:
            return None
        whole = "GlobalAveragePool"
        return cls(losing, mends=whole in rows and whole not in losing, selection=setting.selection)

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Rewrite each pool; see the class."""
        log = Log()
        for scope, node in walk.nodes_to_edit(model):
            is_float = self.selection is not None and self.selection.reason(node) is not None
            if node.op_type not in self.losing or node.domain or is_float or not _may_miss(node):
                continue
            ends = _one_window(node) if self.mends and node.op_type == "AveragePool" else None
            if ends is None:
                text = "--exact: the target's pool multiplies by 1/N, rounded: a mean half-way between two codes may come out an LSB off"
                log.left(text, node)
                continue
            _divide(scope, node, ends, context.names)
            log.did("an AveragePool of one window became a GlobalAveragePool, which rounds ties as ONNX does", node)
        return log.result()


def _may_miss(node: ir.Node) -> bool:
    """Check whether a count of values in a window of `node`, where it is known, has a reciprocal that loses a tie."""
    kernel = _map_sizes(node) if node.op_type == "GlobalAveragePool" else query.attribute(node, "kernel_shape", ())
    if kernel is None:
        return True
    partly = any(query.attribute(node, "pads", ())) or query.attribute(node, "ceil_mode", 0)
    partly = partly or query.attribute(node, "auto_pad", "NOTSET").startswith("SAME")
    sizes = [range(1, size + 1) if partly else (size,) for size in kernel]
    return any(loses_ties(math.prod(window)) for window in itertools.product(*sizes))


def loses_ties(count: int) -> bool:
    """Check whether a sum of `count` bytes times the float32 next to 1/count is off where their mean is a binary fraction.

    Such means, and they alone, lie half-way between codes of a grid that is a power of two times the input's; other
    means are farther from the middle than the product is off.
    """
    odd = count // (count & -count)
    sums = np.arange(0, (CODES - 1) * count + 1, odd, dtype=np.int64)
    return bool(np.any(sums.astype(np.float32) * np.float32(1 / count) != sums / count))


def _one_window(node: ir.Node) -> list[int] | None:
    """Sizes of the only window of `node`, which begins with the map; None where there are more, or it is not known."""
    sizes = _map_sizes(node)
    kernel = [int(size) for size in query.attribute(node, "kernel_shape", ())]
    strides, dilations = (
        list(query.attribute(node, name, ()) or [1] * len(kernel)) for name in ("strides", "dilations")
    )
    padded = any(query.attribute(node, "pads", ())) or query.attribute(node, "auto_pad", "NOTSET").startswith("SAME")
    if sizes is None or padded or query.attribute(node, "ceil_mode", 0) or {*dilations} != {1}:
        return None
    single = all(0 <= size - window < step for size, window, step in zip(sizes, kernel, strides, strict=True))
    return kernel if single else None


def _map_sizes(node: ir.Node) -> list[int] | None:
    """Sizes of the spatial axes that `node` reads; None where one is not known."""
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    sizes = [size for size in list(shape or ())[2:] if isinstance(size, int)]
    return sizes if shape is not None and len(sizes) == len(shape) - 2 else None


def _divide(scope: walk.Scope, node: ir.Node, ends: list[int], names: build.Names) -> None:
    """Put a GlobalAveragePool in the place of `node`."""
    source, output = node.inputs[0], node.outputs[0]
    assert source is not None
    stamp = {build.CREATED_BY: "divide-averages"}
    if _map_sizes(node) != ends:
        name = names.fresh(f"{output.name}_window")
        numbers = {"starts": [0] * len(ends), "ends": ends, "axes": list(range(2, 2 + len(ends)))}
        held = [
            build.constant(scope, names.fresh(f"{name}_{key}"), np.asarray(value, np.int64), before=node)
            for key, value in numbers.items()
        ]
        cut = ir.Shape([*list(source.shape or ())[:2], *ends])
        made = build.node("Slice", [source, *held], [name], dtype=source.dtype, shape=cut, name=name, stamp=stamp)
        scope.insert_before(node, made)
        source = made.outputs[0]
    name = str(output.name)
    whole = build.node(
        "GlobalAveragePool", [source], [name], dtype=output.dtype, shape=output.shape, name=node.name, stamp=stamp
    )
    scope.insert_before(node, whole)
    output.replace_all_uses_with(whole.outputs[0], replace_graph_outputs=True)
    scope.remove(node, safe=True)
    output.name, whole.outputs[0].name = None, name
