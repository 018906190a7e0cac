"""Layers whose width can be chosen, and the widths that the backend's table can give each of them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import onnx_ir as ir

from onnxqat.backends.schema import Backend
from onnxqat.errors import UsageError
from onnxqat.graph import query
from onnxqat.linting.inspect import macs
from onnxqat.placement import planner, table_overrides, table_widths
from onnxqat.placement.table_overrides import NodeSelection
from onnxqat.placement.tensor_specs import output_axis
from onnxqat.types import QuantPlan, Remark, TensorSpec

FLOAT_BITS = 32
"""Width of what stays float."""
BYTE = 8
PACKED = (4, 8)
"""Widths that tables with weights of 4 bits can mix: what lies between them is stored in bytes."""
GRIDS = (3, 4, 5, 6, 8)
"""Widths that are tried by default where narrower grids lie in bytes; 2 bits need training."""


@dataclasses.dataclass(frozen=True)
class Widths:
    """Bit widths of one layer; 32 and 32 leave it in float."""

    weight: int
    activation: int

    @property
    def is_float(self) -> bool:
        """Check whether the layer stays in float."""
        return self.weight == FLOAT_BITS


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer with a constant weight that the table quantizes.

    Attributes:
        node: the name by which ``--bits-of`` finds it in the user's graph.
        placed: its name in the prepared graph.
        op_type: its operator.
        tensor: its weight.
        axis: axis of the output channels in that.
        weights: number of weights.
        macs: multiplications with additions for one sample; 0 where a shape is unknown.
        default: what the table gives it.
        specs: of the weight, by width.
        activations: widths of activations that it can have.
        allow_float: whether it may stay in float.
    """

    node: str
    placed: str
    op_type: str
    tensor: str
    axis: int
    weights: int
    macs: int
    default: Widths
    specs: dict[int, TensorSpec]
    activations: tuple[int, ...]
    allow_float: bool = False

    @property
    def options(self) -> tuple[Widths, ...]:
        """All widths that it can have, the narrowest first."""
        found = [Widths(weight, activation) for weight in sorted(self.specs) for activation in self.activations]
        return (*found, Widths(FLOAT_BITS, FLOAT_BITS)) if self.allow_float else tuple(found)


def weight_widths(table: Backend, asked: Sequence[int] | None, *, least: int = 2) -> tuple[int, ...]:
    """Widths of weights that `table` can mix, of those `asked` for, ascending.

    Args:
        table: backend table, user overrides applied.
        asked: the user's choice; None: :data:`PACKED` or :data:`GRIDS`.
        least: how many there must be: one is enough beside float.

    Raises:
        UsageError: ``backend-one-width``: fewer are left; ``option-invalid``: the backend refuses one that was
            asked for.
    """
    own = table_widths.weight_width(table)
    blocks = any(table.types[name].granularity == "block" for name in table_overrides.type_roles(table)[1])
    if own is None or blocks:
        raise _one_width(table, "its weights are in blocks" if blocks else "no type of its weights is of integers")
    activation = activation_width(table)
    offered = PACKED if _is_packed(table) else GRIDS
    tried = offered if asked is None else asked
    found = tuple(sorted({w for w in tried if w == own or table_widths.takes(table, w, activation)}))
    refused = sorted(set(asked or ()) - set(found))
    if refused:
        text = f"{table.backend} does not take weights of {', '.join(map(str, refused))} bits"
        raise UsageError("option-invalid", text, hint="2 to 8, where its table does not say otherwise (`accepts`)")
    if len(found) < least:
        raise _one_width(table, f"it takes weights of {own} bits alone")
    return found


def activation_width(table: Backend) -> int:
    """Return the width that the table gives most activations."""
    rows = [table.types[name] for name in table_overrides.type_roles(table)[0]]
    return max((row.qtype().bits for row in rows if row.observed), default=BYTE)


def is_stored_in_bytes(table: Backend) -> bool:
    """Check whether grids of fewer than 8 bits lie in bytes, in the file and, for all that the table says, on the target."""
    return not _is_packed(table)


def _is_packed(table: Backend) -> bool:
    return any(table.types[name].dtype in ("int4", "uint4") for name in table_overrides.type_roles(table)[1])


def _one_width(table: Backend, why: str) -> UsageError:
    text = f"{table.backend} has one width of weights, so that there is nothing to mix: {why}"
    return UsageError(
        "backend-one-width", text, hint="choose a table with integer weights per channel or tensor, such as qnn-htp-w4"
    )


def find(
    model: ir.Model,
    table: Backend,
    chosen: NodeSelection,
    names: frozenset[str],
    widths: Sequence[int],
    *,
    wide: bool,
    allow_float: bool,
) -> tuple[list[Layer], QuantPlan, list[Remark]]:
    """The layers to choose widths for, in graph order, the plan without a choice, and why others are none.

    Args:
        model: prepared float model.
        table: backend table, user overrides applied.
        chosen: the user's selection; nodes that it leaves out or gives widths to are no candidates.
        names: names of nodes and tensors by which the user's graph can be addressed.
        widths: of weights.
        wide: 16-bit activations too, where the table has them.
        allow_float: float too.
    """
    first = planner.plan(model, table, chosen)
    weights = {e.tensor: e.decision for e in first.edges if isinstance(e.decision, TensorSpec)}
    nodes = [n for n in model.graph if (spec := weights.get(weight_name(n))) is not None and spec.role == "weight"]
    activation = activation_width(table)
    by_width: dict[int, dict[str, TensorSpec]] = {}
    for width in widths:
        every = {str(node.name): (width, activation) for node in nodes}
        plan = planner.plan(model, table, dataclasses.replace(chosen, widths={**every, **chosen.widths}))
        by_width[width] = {e.tensor: e.decision for e in plan.edges if isinstance(e.decision, TensorSpec)}
    found, fixed, readers = list[Layer](), list[str](), Counter(map(weight_name, nodes))
    for node in nodes:
        tensor, name = weight_name(node), _addressed(node, names)
        specs = {w: by_width[w][tensor] for w in widths if _has_width(by_width[w].get(tensor), w)}
        value = query.constant_array(node.inputs[1])
        shared = readers[tensor] > 1  # two layers with one weight cannot have two widths of it
        if name is None or chosen.bits(node) is not None or len(specs) + allow_float < 2 or value is None or shared:
            fixed.append(str(node.name))
            continue
        wider = wide and table_widths.may_be_wide(table, [node.op_type])
        activations = tuple(sorted({activation, *((table_widths.WIDE,) if wider else ())}))
        own = Widths(_byte(weights[tensor].qtype.bits), activation)
        size = (tensor, output_axis(node) % value.ndim, int(value.size), macs(node) or 0)
        found.append(Layer(name, str(node.name), node.op_type, *size, own, specs, activations, allow_float=allow_float))
    text = "keep their width: user or table gives it, other layers share the weight, or the user's graph has no name for it"
    return found, first, [Remark(text, tuple(fixed), "mixed-precision")] if fixed else []


def weight_name(node: ir.Node) -> str:
    """Name of the second input of `node`, which is the weight of layers; empty if it has none."""
    weight = query.input_at(node, 1)
    return "" if weight is None else str(weight.name)


def _addressed(node: ir.Node, names: frozenset[str]) -> str | None:
    made = (str(value.name) for value in node.outputs)
    return next((name for name in (str(node.name), *made) if name in names), None)


def _has_width(spec: TensorSpec | None, width: int) -> bool:
    return spec is not None and spec.qtype.bits in (width, width - 1 if width == BYTE else width)


def _byte(bits: int) -> int:
    """8-bit weights in -64..63 are bytes."""
    return BYTE if bits == BYTE - 1 else bits
