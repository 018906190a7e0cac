"""Padding that an AveragePool counts becomes a Pad in front of it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, query, walk, windows
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log
from onnxqat.passes._setting import Setting


class PadCountedPools(Pass):
    """An AveragePool that counts its padding (``count_include_pad`` 1) gets a Pad in front and pads no more.

    OpenVINO (2026.4) pads the integer codes with 0, whatever the zero point: border values are off by up to 201 steps,
    also where the pool itself has no quantizers but lies between some. It computes Pad with the zero point. With
    ``ceil_mode`` it counts places beyond the padding, too, also in float, and so does onnxruntime's integer kernel (1.32:
    16 dB of signal to noise).

    1. Amounts, stated or from ``auto_pad``, become the constant ``<output>_pads``, zeros for batch and channels. With
       ``ceil_mode``, padding that no window reads is left out, since it would make room for one more window.
    2. With ``ceil_mode`` and no padding, only the attribute becomes 0.
    3. With `only_ceil`, pools without ``ceil_mode`` stay.
    4. Left alone: pools that pad nothing, amounts that depend on a size that is not known, opsets below 11, and
       attributes of functions.

    Tolerance: float rounding, 1e-6 of the output's range. ::

        y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1> (x)
        y_padded = Pad(x, y_pads)   y = AveragePool <kernel_shape = [3, 3], count_include_pad = 0> (y_padded)
    """

    def __init__(self, only_ceil: bool = False) -> None:
        self.only_ceil = only_ceil

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run for pools with ``ceil_mode`` that the table puts on integers; for all where it takes none that counts."""
        pool = setting.table.ops.get("AveragePool")
        if pool is None:
            return None
        if pool.when.get("count_include_pad", 1) == 0:
            return cls()
        takes_both = "ceil_mode|count_include_pad" not in pool.when
        return cls(only_ceil=True) if takes_both and pool.outputs else None

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Rewrite each pool; see the class."""
        log = Log()
        for scope in walk.scopes(model):
            if query.opset(model, scope) < 11:
                continue
            for node in list(scope):
                amounts = _counted(node)
                if amounts is None or (self.only_ceil and not query.attribute(node, "ceil_mode", 0)):
                    continue
                if any(amounts):
                    self._pad(scope, node, amounts, context.names)
                    log.did("padding that an AveragePool counts became a Pad", node)
                elif query.attribute(node, "ceil_mode", 0):
                    log.did("an AveragePool with ceil_mode counts no places beyond its input", node)
                else:
                    continue
                _count_none(node)
        return log.result()

    def _pad(self, scope: walk.Scope, node: ir.Node, amounts: list[int], names: build.Names) -> None:
        source, output = node.inputs[0], node.outputs[0]
        assert source is not None
        half = len(amounts) // 2
        everywhere = np.asarray([0, 0, *amounts[:half], 0, 0, *amounts[half:]], np.int64)
        pads = build.constant(scope, names.fresh(f"{output.name}_pads"), everywhere, before=node)
        name = names.fresh(f"{output.name}_padded")
        stamp = {build.CREATED_BY: self.name}
        shape = _padded(source, everywhere)
        made = build.node(
            "Pad", [source, pads], [name], dtype=source.dtype, shape=shape, name=names.fresh(f"{name}_Pad"), stamp=stamp
        )
        scope.insert_before(node, made)
        node.replace_input_with(0, made.outputs[0])


def _count_none(node: ir.Node) -> None:
    if query.attribute(node, "auto_pad", "NOTSET").startswith("SAME"):
        node.attributes.pop("ceil_mode", None)  # it has no effect beside SAME
    for name in ("pads", "auto_pad"):
        node.attributes.pop(name, None)
    node.attributes["count_include_pad"] = ir.AttrInt64("count_include_pad", 0)


def _counted(node: ir.Node) -> list[int] | None:
    """Amounts of padding that `node` counts, as in ``pads``; None where it counts none or they are not known."""
    if node.op_type != "AveragePool" or node.domain or query.takes_arguments(node):
        return None
    kernel = query.attribute(node, "kernel_shape", ())
    if not query.attribute(node, "count_include_pad", 0) or not kernel:
        return None
    rank = len(kernel)
    stated = query.attribute(node, "pads", ()) or [0] * 2 * rank
    strides, dilations = (query.attribute(node, name, ()) or [1] * rank for name in ("strides", "dilations"))
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    sizes = list(shape)[2:] if shape is not None else [None] * rank
    mode = query.attribute(node, "auto_pad", "NOTSET")
    ceil = bool(query.attribute(node, "ceil_mode", 0))
    begins, ends = [], []
    for axis, size in enumerate(sizes):
        reach = int(dilations[axis]) * (int(kernel[axis]) - 1) + 1
        known = size if isinstance(size, int) else None
        if mode.startswith("SAME"):
            both = _same(known, reach, int(strides[axis]), upper=mode != "SAME_LOWER")
        elif mode == "VALID":
            both = (0, 0)
        elif ceil:
            both = _up_to_last_window(known, reach, int(strides[axis]), int(stated[axis]), int(stated[axis + rank]))
        else:
            both = int(stated[axis]), int(stated[axis + rank])
        if both is None:
            return None
        begins.append(both[0])
        ends.append(both[1])
    return begins + ends


def _same(size: int | None, reach: int, stride: int, *, upper: bool) -> tuple[int, int] | None:
    """Padding of one axis with ``auto_pad`` SAME; with stride 1 it is the same for every `size`."""
    if size is None and stride != 1:
        return None
    return windows.same_padding(1 if size is None else size, reach, stride, upper=upper)


def _up_to_last_window(size: int | None, reach: int, stride: int, begin: int, end: int) -> tuple[int, int] | None:
    """Padding of one axis with ``ceil_mode``, whose last window starts before the padding behind the data.

    After a Pad that padding is data, in which one more window could start: it ends where the last window ends. Where
    no window can start in it, it stays as it is, and the `size` need not be known.
    """
    if end + stride <= reach:
        return begin, end
    if size is None:
        return None
    windows = -(-(size + begin + end - reach) // stride) + 1
    if (windows - 1) * stride >= size + begin:
        windows -= 1
    read = (windows - 1) * stride + reach - size - begin
    return (begin, min(end, read)) if read >= 0 else None


def _padded(value: ir.Value, amounts: np.ndarray) -> ir.Shape | None:
    if value.shape is None or 2 * len(value.shape) != len(amounts):
        return None
    both = amounts[: len(value.shape)] + amounts[len(value.shape) :]
    sizes = [d + int(a) if isinstance(d, int) else None for d, a in zip(value.shape, both, strict=True)]
    # An open dimension that nothing is added to keeps its name.
    return ir.Shape([d if not a else size for d, a, size in zip(value.shape, both, sizes, strict=True)])
