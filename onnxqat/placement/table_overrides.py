"""User overrides of a table: excluded or included nodes, mixed precision, granularity, observer, types.

Mixed precision, different bit widths in one model, is ``node_bits`` and ``first_last_bits``. The float type of training
(bfloat16 or float16 under autocast) is :attr:`onnxqat.training.execution.execution.Execution.precision`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Literal

import onnx_ir as ir

from onnxqat import discover
from onnxqat.backends import schema
from onnxqat.backends.schema import (
    ACCUMULATOR_BITS,
    FLOAT_OBSERVERS,
    SCALE_BITS,
    WIDTHS,
    Backend,
    Chain,
    Check,
    TypeRow,
)
from onnxqat.errors import UsageError
from onnxqat.graph import query, walk
from onnxqat.ops import operators as ops
from onnxqat.placement import dynamic_table, integer_operators, node_names, node_rules, weight_only
from onnxqat.placement.node_rules import NodeRule, Roles

ACTIVATION_TYPES: dict[str, tuple[str, bool]] = {
    "int8": ("int8", False),
    "uint8": ("uint8", False),
    "int16": ("int16", False),
    "uint16": ("uint16", False),
    "int8-symmetric": ("int8", True),
    "int16-symmetric": ("int16", True),
}


EXACT = (1, 5)
"""Significant bits of activation and weight scales with which every way to compute a layer rounds alike.

A partial sum of a convolution is an integer times a product of scales of at most 6 bits, which float32 holds exactly,
whatever the order; that much holds with the tables' own (2, 4) as well. Here the factor between the accumulator and
the next grid is a short number too, so that integer kernels, which multiply by it, meet the same ties as
QuantizeLinear, which divides.
"""
LUT_BITS = range(4, 16)
"""Bits of the number of segments of a table of 16-bit codes."""

_MARK, _WIDTHS_MARK, _RULES_MARK = "onnxqat.left_out", "onnxqat.widths", "onnxqat.rules"
_EXACT_WEIGHTS = {"scale_bits": EXACT[1], "reduce_range": True}
_TIE_FREE_CHECKS = (
    # with 16 positions, the largest activation times a weight's code is 1/256 of a step: nothing is gained by more
    Check("Conv|ConvTranspose|Gemm|MatMul", "in0 + in1 - out", (2, 16)),
    # a sum of whole steps of its own grid needs no rounding
    Check("Add|Sub", "out - max_in", (0, 62)),
    # a coarser grid than the input's would take a factor of one bit more, see calibration/exact/tie_free_means.py
    Check("Resize|AveragePool", "out - in0", (0, 62)),
)
"""Limits of shifts with which integer kernels round as QuantizeLinear does, see :mod:`onnxqat.calibration.exact.tie_free_sums`."""


@dataclasses.dataclass(frozen=True)
class Overrides:
    """User choices that win over the backend table.

    Attributes:
        exclude: names or glob patterns of nodes (or of the tensors that they make) to leave in float; ``block1`` also
            matches every node below ``block1/`` or ``block1.``. The name of a graph input stands for the nodes that
            read it.
        include: quantize only nodes that match one of these.
        exclude_ops: operator types to leave in float.
        weight_bits, activation_bits: widths, 2 to 8 or 16.
        node_bits: mixed precision: pattern of node names as in `exclude`, width of weights and of activations, for these nodes alone;
            the last pattern that matches wins, over `first_last_bits` too.
        per_channel: granularity of weights.
        observer: range observer of activations and weights, of the first and last layers too: a name, the path of a
            file with a class ``Observer``, or ``"percentile P"`` with the share of values to cover.
        activation_observer, weight_observer: the same for one of the two; they win over `observer`.
        activation_type: one of ``ACTIVATION_TYPES``.
        exact: restrict scales so that torch and every onnxruntime session give the same bits, see ``EXACT``.
        reduce_range: keep 8-bit weights in -64..63, for CPUs without VNNI.
        safe_range: use all codes of 8-bit weights, and raise the scales of the channels in which products of any codes could
            saturate there.
        scale_bits: significant bits of weight and activation scales at a width of 8, see ``TypeRow``; 24 leaves them
            free.
        weight_only: quantize weights alone, by the table that belongs to the backend: int4, uint4, int8 or uint8, of which
            the unsigned ones have a zero point.
        block_size: weights that share a scale along the axis that is summed over; 0: one scale for each channel.
        activations: ``"dynamic"``: scales of activations follow from each tensor when the model runs, by the table that
            belongs to the backend; ``"static"``, or None: from calibration data.
        first_last_bits: width of the first and last weighted layers; 0 leaves them in float.
        encodings: files of encodings of other tools (:mod:`onnxqat.placement.encodings`), which the tensors that they name
            keep.
        rules: types, widths and observers of single nodes (:mod:`onnxqat.placement.node_rules`); they win over all others.
        integer: operators that become integer functions, as ``"softmax,gelu"``, or ``"all"``; None: those of the table.
        lut: bits of the number of segments of their tables of 16-bit codes, 4 to 15; None: 10.
        accumulator_bits: width that the sums of every layer stay within for any input, 8 to 32; None: that of the table.
    """

    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude_ops: tuple[str, ...] = ()
    weight_bits: int | None = None
    activation_bits: int | None = None
    per_channel: bool | None = None
    observer: str | None = None
    activation_observer: str | None = None
    weight_observer: str | None = None
    activation_type: str | None = None
    exact: bool = False
    reduce_range: bool | None = None
    safe_range: bool = False
    scale_bits: tuple[int, int] | None = None
    first_last_bits: int | None = None
    node_bits: tuple[tuple[str, int, int], ...] = ()
    weight_only: str | None = None
    block_size: int | None = None
    activations: str | None = None
    encodings: tuple[str, ...] = ()
    rules: tuple[NodeRule, ...] = ()
    integer: str | None = None
    lut: int | None = None
    accumulator_bits: int | None = None


@dataclasses.dataclass(frozen=True)
class NodeSelection:
    """Nodes that the user took out, found on the user's own graph before any rewriting.

    A rewritten node is recognised by its name or, where it was merged into another, by the tensor that it made.
    """

    left_out: dict[str, str]
    outputs: dict[str, str]
    widths: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    rules: dict[str, Roles] = dataclasses.field(default_factory=dict)

    def bits(self, node: ir.Node) -> tuple[int, int] | None:
        """Widths of weights and activations that the user chose for `node`, or None."""
        return next((self.widths[name] for name in node_names.of(node) if name in self.widths), None)

    def reason(self, node: ir.Node) -> str | None:
        """Reason why `node` is left in float, or None."""
        if node.name in self.left_out:
            return self.left_out[node.name]
        made = (self.outputs.get(str(v.name)) for v in node.outputs)
        return next((reason for reason in made if reason), None)


def select(model: ir.Model, overrides: Overrides) -> NodeSelection:
    """Resolve name patterns and operator types on `model`.

    Raises:
        UsageError: ``pattern-no-match`` for a pattern or operator type that matches nothing.
    """
    nodes = list(walk.nodes(model))
    left_out: dict[int, str] = {}
    for pattern in overrides.exclude:
        readers = _readers_of_inputs(model, pattern)
        found = (
            [n for n in nodes if node_names.matches(n, pattern)] if readers else _matching(nodes, pattern, "--exclude")
        )
        left_out.update({id(n): f"excluded by {pattern!r}" for n in (*readers, *found)})
    for op_type in overrides.exclude_ops:
        found = [n for n in nodes if n.op_type == op_type]
        if not found:
            raise UsageError(
                "pattern-no-match",
                f"--exclude-op {op_type!r} matches no node",
                hint=discover.suggestion(op_type, sorted({n.op_type for n in nodes})),
            )
        left_out.update({id(n): f"operator type {op_type} is excluded" for n in found})
    if overrides.include:
        kept = {id(n) for pattern in overrides.include for n in _matching(nodes, pattern, "--include")}
        left_out.update({id(n): "not included" for n in nodes if id(n) not in kept})
    chosen = [(n, left_out[id(n)]) for n in nodes if id(n) in left_out]
    widths: dict[str, tuple[int, int]] = {}
    for pattern, *bits in overrides.node_bits:
        for node in _matching(nodes, pattern, "--bits-of"):
            widths |= dict.fromkeys(node_names.of(node), (bits[0], bits[1]))
    rules, in_float = node_rules.resolve(model, overrides.rules)
    return NodeSelection(
        in_float | {str(n.name): reason for n, reason in chosen if n.name},
        in_float | {str(v.name): reason for n, reason in chosen for v in n.outputs if v.name},
        widths,
        rules,
    )


def _readers_of_inputs(model: ir.Model, pattern: str) -> list[ir.Node]:
    """The nodes that read the graph inputs that `pattern` names: what keeps an input in float."""
    inputs = [
        v
        for v in model.graph.inputs
        if v.name not in model.graph.initializers and node_names.matches_name(str(v.name), pattern)
    ]
    return list({id(node): node for value in inputs for node in value.consumers()}.values())


def mark(model: ir.Model, chosen: NodeSelection) -> None:
    """Note the selection on the nodes themselves, so that copies of them are found by :func:`unmark`."""
    for node in walk.nodes(model):
        reason, widths, rules = chosen.reason(node), chosen.bits(node), node_rules.of_node(node, chosen.rules)
        if reason is not None:
            node.metadata_props[_MARK] = reason
        if widths is not None:
            node.metadata_props[_WIDTHS_MARK] = ",".join(map(str, widths))
        if rules is not None:
            node.metadata_props[_RULES_MARK] = node_rules.text(rules)


def unmark(model: ir.Model, chosen: NodeSelection) -> NodeSelection:
    """`chosen`, and the nodes that were made from selected ones: by a call of a function, or inside its body."""
    found = [(node, reason) for node in walk.nodes(model) if (reason := node.metadata_props.pop(_MARK, None))]
    widths, rules = dict(chosen.widths), dict(chosen.rules)
    for node in walk.nodes(model):
        text, noted = (node.metadata_props.pop(mark, None) for mark in (_WIDTHS_MARK, _RULES_MARK))
        if text is not None:
            weight, activation = map(int, text.split(","))
            widths |= dict.fromkeys(node_names.of(node), (weight, activation))
        if noted is not None:
            rules |= dict.fromkeys(node_names.of(node), node_rules.parse(noted))
    return NodeSelection(
        {str(node.name): reason for node, reason in found} | chosen.left_out,
        {str(v.name): reason for node, reason in found for v in node.outputs} | chosen.outputs,
        widths,
        rules,
    )


def without(chosen: NodeSelection, reasons: Mapping[str, str]) -> NodeSelection:
    """`chosen`, and the nodes of these names left out as well."""
    return dataclasses.replace(chosen, left_out={**reasons, **chosen.left_out})


def _matching(nodes: Iterable[ir.Node], pattern: str, option: str) -> list[ir.Node]:
    found = [n for n in nodes if node_names.matches(n, pattern)]
    if not found:
        hint, text = (
            discover.suggestion(pattern, sorted({name for n in nodes for name in node_names.of(n)})),
            pattern.strip("*?"),
        )
        if not hint.startswith("did"):
            labels = [query.label(n) for n in nodes]
            alike = [label for label in labels if text and text.lower() in label.lower()]
            examples = ", ".join((alike or labels)[:3])
            hint = f"patterns are node or tensor names of the model, for example {examples}; * and ? are wildcards"
        raise UsageError("pattern-no-match", f"{option} {pattern!r} matches no node", hint=hint)
    return found


def apply(overrides: Overrides, backend: Backend) -> Backend:
    """`backend` with its types changed as the user asked.

    Raises:
        UsageError: ``option-invalid``.
    """
    if overrides.lut is not None and overrides.lut not in LUT_BITS:
        hint = "--lut takes a power of two from 16 to 32768; lut its logarithm, 4 to 15"
        raise UsageError("option-invalid", "no table of an integer function has that many segments", hint=hint)
    if overrides.weight_only is not None and overrides.activations == "dynamic":
        raise UsageError(
            "option-invalid", "weights alone leave activations in float", hint="leave one of the two options"
        )
    backend = dynamic_table.of_backend(weight_only.of_backend(backend, overrides.weight_only), overrides.activations)
    backend = integer_operators.with_functions(backend, overrides.integer)
    backend = _with_accumulators(overrides, backend)
    for edit in (_with_types, _with_short_scales, _with_exactness, _with_first_last):
        backend = edit(overrides, backend)
    _check_widths(overrides, backend)
    return backend


def _with_accumulators(overrides: Overrides, backend: Backend) -> Backend:
    """The width of accumulators.

    Raises:
        UsageError: ``option-invalid``.
    """
    bits = overrides.accumulator_bits
    if bits is None:
        return backend
    if bits not in ACCUMULATOR_BITS:
        raise UsageError("option-invalid", f"an accumulator of {bits} bits", hint="--accumulator-bits takes 8 to 32")
    return backend.model_copy(update={"accumulator_bits": bits})


def _with_types(overrides: Overrides, backend: Backend) -> Backend:
    """Bit widths, granularity and observers."""
    activations, weights = type_roles(backend)
    types = dict(backend.types)
    for name in activations:
        observer = overrides.activation_observer or overrides.observer
        types[name] = _activation(_observed(types[name], observer), overrides)
    for name in weights:
        types[name] = _weight(_observed(types[name], overrides.weight_observer or overrides.observer), overrides)
    backend = backend.model_copy(update={"types": types})
    return weight_only.with_channels(backend) if overrides.block_size == 0 else backend


def _with_short_scales(overrides: Overrides, backend: Backend) -> Backend:
    """Scales of few significant bits, where the user gives their number."""
    if overrides.scale_bits is None:
        return backend
    activations, weights = type_roles(backend)
    types = dict(backend.types)
    types |= _with_scale_bits(types, weights, overrides.scale_bits[0])
    types |= _with_scale_bits(types, activations, overrides.scale_bits[1])
    return backend.model_copy(update={"types": types})


def _with_exactness(overrides: Overrides, backend: Backend) -> Backend:
    """The scales, chains and checks of ``--exact``.

    Raises:
        UsageError: ``option-invalid`` on a table of float8 types.
    """
    if not overrides.exact:
        return backend
    activations, weights = type_roles(backend)
    types = dict(backend.types)
    if any(types[name].is_float for name in (*activations, *weights)):
        raise UsageError("option-invalid", "sums of small floats are not exact, whatever the scales are")
    types |= {name: types[name].model_copy(update={"scale_bits": EXACT[0]}) for name in activations}
    update: dict[str, object] = {"fused": tuple(map(_exact, backend.fused))}
    if backend.exact == "short":
        types |= {name: types[name].model_copy(update=_EXACT_WEIGHTS) for name in weights}
    else:
        update |= {"sums": "tie_free", "checks": (*backend.checks, *_TIE_FREE_CHECKS)}
    return backend.model_copy(update={**update, "types": types})


def _with_first_last(overrides: Overrides, backend: Backend) -> Backend:
    """Width and observer of the first and last weighted layers."""
    observer = overrides.activation_observer or overrides.observer or backend.first_last_observer
    bits = backend.first_last_bits if overrides.first_last_bits is None else overrides.first_last_bits
    return backend.model_copy(update={"first_last_observer": observer, "first_last_bits": bits})


def _check_widths(overrides: Overrides, backend: Backend) -> None:
    """Check that the compiler takes the types at every width that the user asks for.

    Raises:
        UsageError: ``option-invalid``.
    """
    activations, weights = type_roles(backend)
    widths = [(weight, activation) for _, weight, activation in overrides.node_bits]
    if overrides.first_last_bits:
        widths.append((overrides.first_last_bits, overrides.first_last_bits))
    for weight_bits, activation_bits in (*widths, (None, None)):
        for name in weights:
            _check_accepted(backend, "weights", _with_bits(backend.types[name], weight_bits))
        for name in activations:
            _check_accepted(backend, "activations", _with_bits(backend.types[name], activation_bits))
    for rule in overrides.rules:
        for name in weights if rule.weights.given() else ():
            _check_accepted(backend, "weights", rule.weights.apply(backend.types[name]))
        for name in activations if rule.activations.given() else ():
            _check_accepted(backend, "activations", rule.activations.apply(backend.types[name]))


def _exact(chain: Chain) -> Chain:
    return chain.model_copy(update={"inner": chain.exact})


def type_roles(backend: Backend) -> tuple[set[str], set[str]]:
    """Names of the table's activation types and of its weight types."""
    activations: set[str] = set()
    weights: set[str] = set()
    for op, row in backend.ops.items():
        definition = ops.find("", op.partition("/")[0])
        for index, slot in enumerate(row.inputs):
            if slot.use and backend.types[slot.use].observed:
                role = definition.role(index) if definition else "data"
                if role != "bias":
                    (weights if role == "weight" else activations).add(slot.use)
        activations.update(slot.use for slot in row.outputs if slot.use)
    return activations, weights - activations


def _observed(row: TypeRow, observer: str | None) -> TypeRow:
    if observer is None:
        return row
    if row.is_float and observer.partition(" ")[0] not in FLOAT_OBSERVERS:
        raise UsageError(
            "option-invalid",
            f"{observer} counts equal steps, which small floats have not",
            hint=" or ".join(FLOAT_OBSERVERS),
        )
    return row.model_copy(update={"observer": observer})


def _activation(row: TypeRow, overrides: Overrides) -> TypeRow:
    update: dict[str, object] = {}
    if overrides.activation_type is not None:
        if overrides.activation_type not in ACTIVATION_TYPES:
            raise UsageError(
                "option-invalid",
                f"there is no activation type {overrides.activation_type!r}",
                hint=f"one of: {', '.join(ACTIVATION_TYPES)}",
            )
        dtype, symmetric = ACTIVATION_TYPES[overrides.activation_type]
        update |= {"dtype": dtype, "symmetric": symmetric, "bits": None, "qrange": None, "unsigned": False}
    return _with_bits(row.model_copy(update=update), overrides.activation_bits)


def _weight(row: TypeRow, overrides: Overrides) -> TypeRow:
    row = weight_only.with_type(row, overrides.weight_only, overrides.block_size)
    update: dict[str, object] = {}
    if overrides.per_channel is not None:
        if row.granularity == "block":
            raise UsageError(
                "option-invalid",
                "this backend's weights are quantized in blocks, not per channel or tensor",
                hint="--block-size 0 is one scale for each channel",
            )
        update["granularity"] = "channel" if overrides.per_channel else "tensor"
    if overrides.reduce_range is not None:
        update["reduce_range"] = overrides.reduce_range
        update["saturates"] = False
    if overrides.safe_range:
        update |= {"reduce_range": False, "saturates": True}
    return _with_bits(row.model_copy(update=update), overrides.weight_bits)


def _check_accepted(backend: Backend, role: Literal["activations", "weights"], row: TypeRow) -> None:
    accepted = backend.accepts.get(role)
    given = f"{row.dtype}-symmetric" if row.symmetric and not row.is_float else row.dtype
    if accepted is not None and not {row.dtype, given} & set(accepted):
        raise UsageError(
            "option-invalid",
            f"{backend.backend} does not compile {role} of type {row.dtype if row.symmetric else f'{row.dtype} with a zero point'}",
            hint=f"it takes {' or '.join(_choice(backend, each) for each in accepted)}; "
            "a table of your own may say otherwise (`accepts`)",
        )


def _choice(backend: Backend, accepted: str) -> str:
    """Name of an accepted type for an error text; float types name the ``--backend`` whose table has them."""
    if accepted.removesuffix("-symmetric") in ACTIVATION_TYPES or not accepted.startswith("float"):
        return accepted
    tables = [name for name in schema.names() if name.startswith(f"{backend.backend}-")]
    found = [n for n in tables if any(row.dtype == accepted for row in schema.load(n).types.values())]
    return f"{accepted} (--backend {found[0]})" if found else accepted


def _with_bits(row: TypeRow, bits: int | None) -> TypeRow:
    if bits is None:
        return row
    _check_width(bits)
    if row.is_float:
        raise UsageError(
            "option-invalid", f"{row.dtype} has no other width", hint="choose the backend's table with integer types"
        )
    return row.with_bits(bits)


def _with_scale_bits(types: Mapping[str, TypeRow], names: Iterable[str], bits: int) -> dict[str, TypeRow]:
    if bits not in SCALE_BITS:
        raise UsageError("option-invalid", f"a scale of {bits} significant bits is not possible", hint="1 to 24")
    return {name: types[name].model_copy(update={"scale_bits": bits}) for name in names}


def _check_width(bits: int) -> None:
    if bits not in WIDTHS:
        raise UsageError("option-invalid", f"a width of {bits} bits is not possible", hint="2 to 8, or 16")
