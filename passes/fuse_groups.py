"""Groups that the target has an operator for become that operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxqat.analysis.groups import find
from onnxqat.analysis.groups.group import Group
from onnxqat.backends.group_rules import OPERATORS
from onnxqat.errors import QatError
from onnxqat.graph import build, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite, apply
from onnxqat.passes._edits import Log, drop_unused
from onnxqat.passes._setting import Setting
from onnxqat.passes.raise_opset import RaiseOpset
from onnxqat.passes.split_hard_swish import SplitHardSwish

Made = tuple[str, list[ir.Value | None], dict[str, Any]]


class FuseGroups(Pass):
    """A function that is written out in elementary operators becomes the one operator that the target has for it.

    1. Gelu by Erf or Tanh becomes Gelu (opset 20), by Sigmoid Swish with ``alpha`` 1.702, SiLU Swish (opset 24), HardSwish
       and Mish the operators of these names, whatever the order of factors.
    2. LayerNormalization (opset 17) and RMSNormalization (opset 23) over the last axes; a factor that is missing is 1.
    3. GroupNormalization (opset 21), where its factor and offset are one number for each channel.
    4. Attention (opset 23) of four axes, with a mask that is added.
    5. The opset is raised where that is needed and the target reads it.
    6. Left alone, with the reason: kinds that `kinds` has not, groups of which `left_out` is true for a node, those whose
       operator `newest` has not, and forms that it cannot express.

    The result keeps its name.

    Tolerance: float rounding, 1e-5 of the output's range. ::

        e = Erf(d)  s = Add(e, one)  p = Mul(x, s)  y = Mul(p, half)      with  d = Div(x, root_of_2)
        y = Gelu <approximate = "none"> (x)

    Args:
        kinds: kinds of groups (:data:`onnxqat.analysis.groups.kinds.KINDS`).
        newest: the newest opset that the target reads.
        left_out: whether a node is to stay as it is.
    """

    def __init__(
        self,
        kinds: tuple[str, ...] = tuple(OPERATORS),
        newest: int = 23,
        left_out: Callable[[ir.Node], Any] = lambda node: None,
    ) -> None:
        self.kinds, self.newest, self.left_out = kinds, newest, left_out

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Fuse the kinds that the table wants fused; nodes that the user took out stay.

        A HardSwish is fused too where ``split-hard-swish`` takes it apart again: into the parts that the table has rows
        for, whatever parts the exporter wrote it in.
        """
        kinds = tuple(kind for kind, rule in setting.table.groups.items() if rule == "fused")
        if setting.table.groups.get("HardSwish") == "parts" and SplitHardSwish.for_backend(setting) is not None:
            kinds = (*kinds, "HardSwish")
        reason = (lambda node: None) if setting.selection is None else setting.selection.reason
        return cls(kinds, setting.table.opset[1], reason) if kinds else None

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Fuse; see the class."""
        log = Log()
        wanted = [g for g in find.find(model.graph) if g.kind in self.kinds and not any(map(self.left_out, g.nodes))]
        fitting: list[tuple[Group, Made, int]] = []
        for group in wanted:
            made = _FORMS[group.kind](group)
            since = 24 if made is not None and made[0] == "Swish" else OPERATORS[group.kind][1]
            if made is None:
                log.left(
                    f"a {group.kind} stays in parts: {OPERATORS[group.kind][0]} of ONNX has no such form",
                    group.nodes[-1],
                )
            elif since > self.newest:
                log.left(f"a {group.kind} stays in parts: {made[0]} is of opset {since}", group.nodes[-1])
            else:
                fitting.append((group, made, since))
        fitting = self._raise(model, context, fitting, log)
        replaced: dict[ir.Value, ir.Value] = {}  # what one group makes, another one may read
        for group, (op_type, inputs, attributes), _ in fitting:
            current = [value if value is None else replaced.get(value, value) for value in inputs]
            replaced[group.output] = _replace(group, op_type, current, attributes, context.names)
            log.did(f"a {group.kind} that was written out became {op_type}", group.nodes[-1])
        return log.result()

    @staticmethod
    def _raise(
        model: ir.Model, context: Context, fitting: list[tuple[Group, Made, int]], log: Log
    ) -> list[tuple[Group, Made, int]]:
        """Raise the opset of `model` for the groups; those that remain to be fused."""
        has = query.opset(model)
        needed = max((since for _, _, since in fitting), default=has)
        if needed <= has:
            return fitting
        try:
            apply(RaiseOpset(needed), model.clone(), Context(build.Names(model)))
        except QatError as error:
            text = f"the opset cannot be raised from {has} to {needed}: {error.message}"
            late = [group.nodes[-1] for group, _, since in fitting if since > has]
            log.left(f"groups stay in parts: {text}", *late)
            return [one for one in fitting if one[2] <= has]
        apply(RaiseOpset(needed), model, context)
        log.did(f"opset raised from {has} to {needed}")
        return fitting


# ---------------------------------------------------------------- forms: operator, inputs and attributes of a group
def _activation(group: Group) -> Made | None:
    if group.kind == "Gelu" and group.form != "sigmoid":
        return "Gelu", list(group.inputs), {"approximate": "tanh" if group.form == "tanh" else "none"}
    if group.kind in ("Gelu", "Silu"):
        return "Swish", list(group.inputs), {"alpha": 1.702 if group.kind == "Gelu" else 1.0}
    return group.kind, list(group.inputs), {}


def _normalization(group: Group) -> Made | None:
    x, scale, *bias = group.inputs
    sizes = None if x is None else _normalized_sizes(x, group.attributes["axes"], scale)
    if x is None or sizes is None or not all(v is None or _sizes(v) == sizes for v in (scale, *bias)):
        return None
    most = query.rank(x) or len(sizes)
    if any((query.rank(v) or 0) > most for v in (scale, *bias)):
        return None  # axes in front would be new ones
    given = scale if scale is not None else _constant(group, "scale", np.ones(sizes, np.float32))
    attributes = {"axis": -len(sizes), "epsilon": float(group.attributes["epsilon"])}
    return group.kind, [x, given, *(v for v in bias if v is not None)], attributes


def _normalized_sizes(x: ir.Value, axes: Sequence[int] | None, scale: ir.Value | None) -> list[int] | None:
    """Sizes of the last axes of `x`, if `axes` are those; None if they are others, or if the sizes are unknown."""
    shape = None if x.shape is None else list(x.shape)
    if not axes or (shape is None and max(axes) >= 0):
        return None
    ends = sorted(axis % len(shape) - len(shape) if shape is not None else axis for axis in axes)
    if ends != list(range(-len(ends), 0)):
        return None
    known = [None] * len(ends) if shape is None else shape[ends[0] :]
    sizes = [size for size in known if isinstance(size, int)]
    if len(sizes) == len(known) or scale is None:
        return sizes if len(sizes) == len(known) else None
    # What a computed shape hides, as behind a Reshape, the scale says: it has one value for each place.
    given = _sizes(scale)
    if given is None or len(given) != len(known) or 1 in given:
        return None
    return given if all(k == g for k, g in zip(known, given, strict=True) if isinstance(k, int)) else None


def _group_normalization(group: Group) -> Made | None:
    x, *affine = group.inputs
    channels = x.shape[1] if x is not None and x.shape is not None and len(x.shape) > 2 else None
    if not isinstance(channels, int) or x is None:
        return None
    if query.static_shape(group.output) is not None and list(group.output.shape or ()) != list(x.shape or ()):
        return None
    made: list[ir.Value | None] = [x]
    for value, name, fill in zip(affine, ("scale", "bias"), (1.0, 0.0), strict=True):
        array = np.full(channels, fill, np.float32) if value is None else query.constant_array(value)
        if array is None or array.size not in (1, channels):
            return None
        if array.size == channels and value is not None and array.shape[1 - len(x.shape or ()) :][:1] != (channels,):
            return None  # its numbers lie along another axis
        row = np.broadcast_to(array.reshape(-1), (channels,))
        made.append(_constant(group, name, np.ascontiguousarray(row)))
    return group.kind, made, dict(group.attributes)


def _attention(group: Group) -> Made | None:
    queries, keys, values, mask = group.inputs
    if any(query.rank(v) != 4 for v in (queries, keys, values)) or keys is None:
        return None
    if any(n.op_type == "Where" for n in group.nodes) or not group.attributes["scale"] > 0:
        return None
    turned = keys.producer()
    if turned is None or turned.op_type != "Transpose" or list(query.attribute(turned, "perm", [])) != [0, 1, 3, 2]:
        return None
    return "Attention", [queries, turned.inputs[0], values, mask], {"scale": float(group.attributes["scale"])}


_FORMS: Mapping[str, Callable[[Group], Made | None]] = {
    **dict.fromkeys(("Gelu", "Silu", "HardSwish", "Mish"), _activation),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _normalization),
    "GroupNormalization": _group_normalization,
    "Attention": _attention,
}


def _sizes(value: ir.Value) -> list[int] | None:
    """The shape of a constant, without ones in front."""
    stored = query.constant_tensor(value)
    if stored is None:
        return None
    sizes = [int(size) for size in stored.shape.numpy()]
    while len(sizes) > 1 and sizes[0] == 1:
        sizes.pop(0)
    return sizes


def _constant(group: Group, what: str, array: np.ndarray) -> ir.Value:
    """A constant that is given its place and its name once the group is replaced."""
    return ir.Value(name=f"{group.output.name}_{what}", const_value=build.tensor(array))


def _replace(
    group: Group, op_type: str, inputs: list[ir.Value | None], attributes: dict[str, Any], names: build.Names
) -> ir.Value:
    """Put one node in the place of the group, and return its result."""
    last, output = group.nodes[-1], group.output
    scope, name = walk.scope_of(last), str(output.name)
    read: list[ir.Value | None] = []
    for value in inputs:
        array = query.constant_array(value)
        new = value is not None and array is not None and value.graph is None and value.producer() is None
        flat = array is not None and array.ndim > 1 and op_type.endswith("Normalization") and value is not inputs[0]
        if value is not None and array is not None and (new or flat):
            array = array.reshape([size for size in array.shape if size != 1] or [1]) if flat else array
            value = build.constant(scope, names.fresh(str(value.name)), array, before=last)
        read.append(value)
    while read and read[-1] is None:
        read.pop()
    output.name = None
    made = build.node(
        op_type,
        read,
        [name],
        attributes,
        dtype=output.dtype,
        shape=output.shape,
        name=names.fresh(f"{name}_{op_type}"),
        stamp={build.CREATED_BY: FuseGroups.name},
    )
    scope.insert_before(last, made)
    made.outputs[0].metadata_props.update(output.metadata_props)
    output.replace_all_uses_with(made.outputs[0], replace_graph_outputs=True)
    spent = [v for node in group.nodes for v in node.inputs]
    scope.remove(group.nodes, safe=True)
    for value in spent:
        if value is not None and query.constant_tensor(value) is not None:
            drop_unused(value)
    return made.outputs[0]
