"""Steps of the ai.onnx operators from one schema version to the next: one small rewriting each.

Nodes are left unchanged at a step that is not listed if the two schemas are compatible (:func:`is_compatible`), and
refused otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from onnxqat.errors import UnsupportedError
from onnxqat.graph import build, query, walk
from onnxqat.passes._inference import Inferred


@dataclasses.dataclass(eq=False)
class Step:
    """One node that is lifted over one schema change.

    Attributes:
        scope: the graph or function that holds it.
        node: the node.
        names: fresh names.
        inferred: types and shapes.
        stamp: metadata for new nodes.
    """

    scope: walk.Scope
    node: ir.Node
    names: build.Names
    inferred: Inferred
    stamp: dict[str, str]

    def take(self, name: str) -> ir.Attr | None:
        """Remove attribute `name` and return it."""
        return self.node.attributes.pop(name, None)

    def set(self, name: str, value: str | int) -> None:
        """Give the node an attribute."""
        self.node.attributes[name] = ir.AttrString(name, value) if isinstance(value, str) else ir.AttrInt64(name, value)

    def put(self, index: int, suffix: str, array: np.ndarray, dtype: ir.DataType | None = None) -> None:
        """Let input `index` be a new constant ``<node>_<suffix>``."""
        base = self.node.name or str(self.node.outputs[0].name)
        value = build.constant(self.scope, self.names.fresh(f"{base}_{suffix}"), array, dtype, before=self.node)
        if len(self.node.inputs) <= index:
            self.node.resize_inputs(index + 1)
        self.node.replace_input_with(index, value)

    def refuse(self, reason: str) -> UnsupportedError:
        """The error that says why this node cannot be converted."""
        return UnsupportedError(
            "operator-unsupported", f"{query.label(self.node)} ({self.node.op_type}) cannot be converted: {reason}"
        )

    def data_type(self) -> ir.DataType:
        """Element type of the first input."""
        dtype = self.inferred.dtype(self.node.inputs[0]) or self.inferred.dtype(self.node.outputs[0])
        if dtype is None:
            raise self.refuse("the type of its input is unknown")
        return dtype


def _moves_integers(*moves: tuple[str, int]) -> Callable[[Step], None]:
    def step(at: Step) -> None:
        for name, index in moves:
            attribute = at.take(name)
            if attribute is not None:
                values = attribute.value if isinstance(attribute.value, Sequence) else [attribute.value]
                at.put(index, name, np.asarray(values, np.int64))

    return step


def _clip(at: Step) -> None:
    dtype = at.data_type() if {"min", "max"} & set(at.node.attributes) else None
    for name, index in (("min", 1), ("max", 2)):
        attribute = at.take(name)
        if attribute is not None:
            at.put(index, name, np.asarray(attribute.value, np.float32), dtype)


def _pad(at: Step) -> None:
    pads, value = at.take("pads"), at.take("value")
    dtype = at.data_type()
    at.put(1, "pads", np.asarray([] if pads is None else pads.value, np.int64))
    if value is not None and value.value != 0:
        at.put(2, "value", np.asarray(value.value, np.float32), dtype)


def _dropout_mask(at: Step) -> None:
    if any(map(query.is_used, at.node.outputs[1:])):
        raise at.refuse("its mask is read, and the mask's type changed")


def _dropout_ratio(at: Step) -> None:
    ratio = at.take("ratio")
    if ratio is not None:
        at.put(1, "ratio", np.asarray(ratio.value, np.float32))


def _batchnorm_spatial(at: Step) -> None:
    spatial = at.take("spatial")
    if spatial is not None and not spatial.value:
        raise at.refuse("spatial=0 has no successor")


def _batchnorm_outputs(at: Step) -> None:
    if any(map(query.is_used, at.node.outputs[1:])):
        raise at.refuse("its training outputs are read")
    at.node.resize_outputs(1)


def _softmax(at: Step) -> None:
    """Keep Softmax's meaning over opset 13, until which it normalized over all axes from `axis` on: flatten them."""
    source, output = at.node.inputs[0], at.node.outputs[0]
    attribute = at.take("axis")
    axis = 1 if attribute is None else int(attribute.value)
    shape, rank = at.inferred.shape(source), at.inferred.rank(source)
    if rank is not None and rank > 0 and shape is not None:
        place = axis + rank if axis < 0 else axis
        if all(size == 1 for size in shape[place + 1 :]) and place < rank:
            at.set("axis", axis)
            return
    assert source is not None
    base = at.node.name or str(output.name)

    def make(op: str, inputs: list[ir.Value], attributes: dict[str, int], dtype: ir.DataType | None) -> ir.Node:
        name = at.names.fresh(f"{base}_{op}")
        return build.node(
            op, inputs, [at.names.fresh(f"{name}_output")], attributes, dtype=dtype, name=name, stamp=at.stamp
        )

    sizes = make("Shape", [source], {}, ir.DataType.INT64)
    flat = make("Flatten", [source], {"axis": axis}, source.dtype)
    back = make("Reshape", [flat.outputs[0], sizes.outputs[0]], {}, output.dtype)
    result, name = back.outputs[0], output.name
    result.shape = output.shape.copy() if output.shape is not None else None
    output.replace_all_uses_with(result, replace_graph_outputs=True)
    output.name, output.shape = result.name, None
    result.name = name
    at.scope.insert_before(at.node, [sizes, flat])
    at.scope.insert_after(at.node, back)
    at.node.replace_input_with(0, flat.outputs[0])
    back.replace_input_with(0, output)
    at.set("axis", 1)


def _upsample_scales(at: Step) -> None:
    scales = at.take("scales")
    if scales is None:
        raise at.refuse("it has no scales")
    at.put(1, "scales", np.asarray(scales.value, np.float32))


def _upsample(at: Step) -> None:
    at.node.op_type = "Resize"


def _resize(at: Step) -> None:
    scales = at.node.inputs[1]
    if query.attribute(at.node, "mode", "nearest") == "nearest":
        factors = query.constant_array(scales)
        if factors is None:
            raise at.refuse("scales of mode nearest are not constant")
        if (factors < 1).any() and (factors > 1).any():
            raise at.refuse("it enlarges one axis and shrinks another")
        at.set("nearest_mode", "ceil" if (factors < 1).any() else "floor")
    at.set("coordinate_transformation_mode", "asymmetric")
    at.node.resize_inputs(3)
    at.node.replace_input_with(2, scales)
    at.put(1, "roi", np.zeros(0, np.float32))


def _scatter(at: Step) -> None:
    at.node.op_type = "ScatterElements"


def _split_outputs(at: Step) -> None:
    if len(at.node.inputs) < 2 or at.node.inputs[1] is None:
        at.set("num_outputs", len(at.node.outputs))


def _roi_align(at: Step) -> None:
    if "coordinate_transformation_mode" not in at.node.attributes:
        at.set("coordinate_transformation_mode", "output_half_pixel")


def _grid_sample(at: Step) -> None:
    mode = query.attribute(at.node, "mode", "bilinear")
    at.set("mode", {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))


def _dft(at: Step) -> None:
    axis = at.take("axis")
    at.put(2, "axis", np.asarray(1 if axis is None else axis.value, np.int64))


def _as_it_is(at: Step) -> None:
    del at  # the schemas differ in types that the operator never computed with


def _refused(reason: str) -> Callable[[Step], None]:
    def step(at: Step) -> None:
        raise at.refuse(reason)

    return step


STEPS: dict[tuple[str, int], Callable[[Step], None]] = {
    ("BatchNormalization", 9): _batchnorm_spatial,
    ("BatchNormalization", 14): _batchnorm_outputs,
    ("Clip", 11): _clip,
    ("DFT", 20): _dft,
    ("Dropout", 10): _dropout_mask,
    ("Dropout", 12): _dropout_ratio,
    ("Erf", 13): _as_it_is,
    ("GridSample", 20): _grid_sample,
    ("GroupNormalization", 21): _refused("scale and bias became one a channel"),
    ("Hardmax", 13): _softmax,
    ("LogSoftmax", 13): _softmax,
    ("Pad", 11): _pad,
    ("ReduceSum", 13): _moves_integers(("axes", 1)),
    ("Resize", 11): _resize,
    ("RoiAlign", 16): _roi_align,
    ("Scan", 9): _refused("the batch axis of its first version has no successor"),
    ("Scatter", 11): _scatter,
    ("Slice", 10): _moves_integers(("starts", 1), ("ends", 2), ("axes", 3)),
    ("Softmax", 13): _softmax,
    ("Split", 13): _moves_integers(("split", 1)),
    ("Split", 18): _split_outputs,
    ("Squeeze", 13): _moves_integers(("axes", 1)),
    ("TopK", 10): _moves_integers(("k", 1)),
    ("Unsqueeze", 13): _moves_integers(("axes", 1)),
    ("Upsample", 9): _upsample_scales,
    ("Upsample", 10): _upsample,
    **{
        (f"Reduce{kind}", 18): _moves_integers(("axes", 1))
        for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
    },
}


def is_compatible(node: ir.Node, old: onnx.defs.OpSchema, new: onnx.defs.OpSchema) -> str | None:
    """None where `node` means the same under both schemas as far as they state it, otherwise what differs."""
    if new.deprecated:
        return f"the operator is gone in version {new.since_version}"
    if not new.min_input <= len(node.inputs) <= new.max_input:
        return f"version {new.since_version} takes other inputs"
    if not new.min_output <= len(node.outputs) <= new.max_output:
        return f"version {new.since_version} has other outputs"
    for name in node.attributes:
        if name not in new.attributes:
            return f"attribute {name} is gone in version {new.since_version}"
    for name in old.attributes:
        if name not in node.attributes:
            before, after = old.attributes[name], new.attributes.get(name)
            if after is not None and before.default_value != after.default_value:
                return f"the default of attribute {name} changed in version {new.since_version}"
    for mine, theirs in (*zip(old.inputs, new.inputs, strict=False), *zip(old.outputs, new.outputs, strict=False)):
        if not mine.types <= theirs.types:
            return f"version {new.since_version} has other types for {theirs.name}"
    return None
