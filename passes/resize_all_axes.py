"""Resize without its attribute `axes`: scales or sizes for every axis."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxqat.graph import build, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, drop_unused

_SCALES, _SIZES = 2, 3


class ResizeAllAxes(Pass):
    """A Resize that names its axes (opset 18) gets scales or sizes for all axes instead.

    onnxruntime (1.32) moves Transpose through Resize when integer convolutions around it take another layout, and then
    reads scales and sizes as those of all axes: its default session refuses a file whose Resize has axes.

    1. The scale of an axis that was not named is 1, its size that of the input, which a Shape gives where it is not known.
    2. Left alone: unknown rank; regions; sizes that keep proportions, which other axes would take part in.

    Tolerance: none. ::

        y = Resize <axes = [1]> (x, , s)         <float[1] s = {2}>   of rank 2
        y = Resize (x, , s_all_axes)             <float[2] s_all_axes = {1, 2}>
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Rewrite each Resize; see the class."""
        log = Log()
        for scope, node in walk.nodes_to_edit(model):
            if node.op_type == "Resize" and node.domain == "" and "axes" in node.attributes:
                self._rewrite(scope, node, context.names, log)
        return log.result()

    def _rewrite(self, scope: walk.Scope, node: ir.Node, names: build.Names, log: Log) -> None:
        """Give one Resize scales or sizes for all axes, and drop its attribute `axes`."""
        image = node.inputs[0]
        rank, index = query.rank(image), _SIZES if len(node.inputs) > _SIZES and node.inputs[_SIZES] else _SCALES
        given = query.input_at(node, index)
        values = query.constant_array(given)
        crops = query.attribute(node, "coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
        keeps = index == _SIZES and query.attribute(node, "keep_aspect_ratio_policy", "stretch") != "stretch"
        if image is None or rank is None or given is None or values is None or crops or keeps:
            log.left("a Resize of unknown rank or sizes, of regions or proportions keeps its axes", node)
            return
        place = {int(axis) % rank: at for at, axis in enumerate(query.attribute(node, "axes", ()))}
        order = np.asarray([place.get(axis, len(place) + axis) for axis in range(rank)], np.int64)
        name = names.fresh(f"{given.name}_all_axes")
        shape = () if image.shape is None else tuple(image.shape)
        known = all(isinstance(size, int) for axis, size in enumerate(shape) if axis not in place)
        if index == _SCALES or known:
            others = np.ones(rank, values.dtype) if index == _SCALES else np.asarray([_or_0(size) for size in shape])
            complete = build.constant(scope, name, np.append(values, others).astype(values.dtype)[order], before=node)
        else:
            complete = self._sizes(scope, node, order, name, names)
        node.replace_input_with(index, complete)
        node.attributes.pop("axes")
        drop_unused(given)
        log.did("Resize got scales or sizes for all axes", node)

    def _sizes(self, scope: walk.Scope, node: ir.Node, order: np.ndarray, name: str, names: build.Names) -> ir.Value:
        """The sizes of all axes: those given, followed by those of the input, in the order of the axes."""
        image, given = node.inputs[0], node.inputs[_SIZES]
        assert image is not None
        assert given is not None
        indices = build.constant(scope, names.fresh(f"{name}_indices"), order, before=node)

        def make(op_type: str, inputs: list[ir.Value], output: str, length: int) -> ir.Value:
            attributes = {} if op_type == "Shape" else {"axis": 0}
            title = names.fresh(f"{output}_{op_type}")
            kind, shape, stamp = ir.DataType.INT64, ir.Shape([length]), {build.CREATED_BY: self.name}
            made = build.node(op_type, inputs, [output], attributes, dtype=kind, shape=shape, name=title, stamp=stamp)
            scope.insert_before(node, made)
            return made.outputs[0]

        whole = make("Shape", [image], names.fresh(f"{name}_of_input"), len(order))
        named = len(query.attribute(node, "axes", ()))
        both = make("Concat", [given, whole], names.fresh(f"{name}_and_input"), named + len(order))
        return make("Gather", [both, indices], name, len(order))


def _or_0(size: object) -> int:
    """`size`, or 0 for an axis of unknown size, which is one of those that are named."""
    return size if isinstance(size, int) else 0
