"""Padding that an AveragePool counts becomes a Pad in front of it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log


class PadCountedPools(Pass):
    """An AveragePool that counts its padding (``count_include_pad`` 1) gets a Pad in front and pads no more.

    OpenVINO (2026.4) pads the integer codes with 0, whatever the zero point: border values are off by up to 201 steps,
    also where the pool itself has no quantizers but lies between some. It computes Pad with the zero point.

    1. Explicit amounts become the constant ``<output>_pads``, zeros for batch and channels.
    2. Left alone: pools without padding, with ``auto_pad`` or ``ceil_mode`` (its windows beyond the padding are not
       counted), opsets below 11, and attributes of functions.

    Tolerance: float rounding, 1e-6 of the output's range. ::

        y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1> (x)
        y_padded = Pad(x, y_pads)   y = AveragePool <kernel_shape = [3, 3], count_include_pad = 0> (y_padded)
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Rewrite each pool; see the class."""
        log = Log()
        for scope in walk.scopes(model):
            if query.opset(model, scope) < 11:
                continue
            for node in list(scope):
                if node.op_type == "AveragePool" and node.domain == "" and _counts_explicit_padding(node):
                    self._rewrite(scope, node, context.names)
                    log.did("padding that an AveragePool counts became a Pad", node)
        return log.result()

    def _rewrite(self, scope: walk.Scope, node: ir.Node, names: build.Names) -> None:
        source, output = node.inputs[0], node.outputs[0]
        assert source is not None
        amounts = [int(a) for a in node.attributes["pads"].value]
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
        del node.attributes["pads"]
        node.attributes["count_include_pad"] = ir.AttrInt64("count_include_pad", 0)


def _counts_explicit_padding(node: ir.Node) -> bool:
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return False
    explicit = query.attribute(node, "auto_pad", "NOTSET") == "NOTSET" and not query.attribute(node, "ceil_mode", 0)
    return explicit and bool(query.attribute(node, "count_include_pad", 0)) and any(query.attribute(node, "pads", ()))


def _padded(value: ir.Value, amounts: np.ndarray) -> ir.Shape | None:
    if value.shape is None or 2 * len(value.shape) != len(amounts):
        return None
    both = amounts[: len(value.shape)] + amounts[len(value.shape) :]
    sizes = [d + int(a) if isinstance(d, int) else d if not a else None for d, a in zip(value.shape, both, strict=True)]
    return ir.Shape(sizes)
