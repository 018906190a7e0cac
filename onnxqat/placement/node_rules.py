"""Rules of the user for single nodes: types, widths and observers by name, operator, or place between two tensors."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import onnx_ir as ir

from onnxqat import discover
from onnxqat.backends.schema import FLOAT_OBSERVERS, WIDTHS, TypeRow
from onnxqat.errors import UsageError
from onnxqat.graph import walk
from onnxqat.placement import node_names
from onnxqat.types import QuantPlan, TensorSpec

TYPES = ("int8", "uint8", "int16", "uint16")
"""Types that a rule may give; narrower grids are `bits` inside of them."""


@dataclasses.dataclass(frozen=True)
class TensorRule:
    """Quantization of the weights, or of the activations, of the nodes that a rule matches.

    Attributes:
        type: ONNX type of the codes, one of ``TYPES``.
        symmetric: zero point in the middle of the grid.
        bits: width, 2 to 8 or 16.
        observer: range observer: a name, the path of a file with a class ``Observer``, or ``percentile P``.
        per_channel: one scale for each output channel of a weight, or one for the whole tensor.

    None leaves what the table and other options say.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    type: str | None = None
    symmetric: bool | None = None
    bits: int | None = None
    observer: str | None = None
    per_channel: bool | None = None

    def __post_init__(self) -> None:
        if self.type is not None and self.type not in TYPES:
            raise ValueError(f"type {self.type!r} is none of {', '.join(TYPES)}")
        if self.bits is not None and self.bits not in WIDTHS:
            raise ValueError(f"a width of {self.bits} bits is not possible: 2 to 8, or 16")

    def over(self, other: TensorRule) -> TensorRule:
        """Return this rule, with the values of `other` where it has none."""
        return dataclasses.replace(other, **self.given())

    def given(self) -> dict[str, Any]:
        """Return the values that the rule has."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    def apply(self, row: TypeRow) -> TypeRow:
        """Return the table's type `row` as the rule changes it.

        Raises:
            UsageError: ``option-invalid``: a small float type, which has no other width, or weights in blocks, per channel.
        """
        if not self.given():
            return row
        if row.is_float and (self.type or self.bits or self.symmetric is False):
            raise UsageError("option-invalid", f"{row.dtype} has no other type or width", hint="exclude these nodes")
        if row.is_float and self.observer and self.observer.partition(" ")[0] not in FLOAT_OBSERVERS:
            raise UsageError("option-invalid", f"{self.observer} counts equal steps, which {row.dtype} has not")
        if row.granularity == "block" and self.per_channel is not None:
            raise UsageError("option-invalid", "these weights are quantized in blocks, not per channel or tensor")
        update: dict[str, object] = {}
        if self.type is not None:
            symmetric = row.symmetric and not self.type.startswith("u")
            update |= {"dtype": self.type, "symmetric": symmetric, "bits": None, "qrange": None, "unsigned": False}
        if self.symmetric is not None:
            update |= {"symmetric": self.symmetric, "unsigned": row.unsigned and self.symmetric and self.type is None}
        if self.observer is not None:
            update["observer"] = self.observer
        if self.per_channel is not None:
            update["granularity"] = "channel" if self.per_channel else "tensor"
        row = row.model_copy(update=update)
        return row if self.bits is None else row.with_bits(self.bits)


@dataclasses.dataclass(frozen=True)
class NodeRule:
    """Treatment of the nodes that match every condition given; a later rule wins over an earlier one, value by value.

    Attributes:
        name: names or glob patterns of nodes, or of tensors that they make, as ``--exclude`` takes them.
        regex: regular expression that is found in the name of the node or of a tensor that it makes.
        operator: operator types.
        between: two tensors: the nodes on the ways from the first to the second.
        weights, activations: how they are quantized.
        float: leave the nodes in float.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    name: tuple[str, ...] = ()
    regex: str | None = None
    operator: tuple[str, ...] = ()
    between: tuple[str, str] | None = None
    weights: TensorRule = TensorRule()
    activations: TensorRule = TensorRule()
    float: bool = False

    def __post_init__(self) -> None:
        if not (self.name or self.regex or self.operator or self.between):
            raise ValueError("a rule needs a condition: name, regex, operator or between")
        if not (self.float or self.weights.given() or self.activations.given()):
            raise ValueError("a rule needs weights, activations or float")
        if self.activations.per_channel is not None:
            raise ValueError("activations have one scale for the whole tensor")
        try:
            re.compile(self.regex or "")
        except re.error as error:
            raise ValueError(f"regex {self.regex!r}: {error}") from None

    def __str__(self) -> str:
        conditions = {k: getattr(self, k) for k in ("name", "regex", "operator", "between") if getattr(self, k)}
        return ", ".join(f"{k} {v if isinstance(v, str) else ' '.join(v)}" for k, v in conditions.items())


Roles = tuple[TensorRule, TensorRule]
"""Rules of a node's weights and of its activations."""


def resolve(model: ir.Model, rules: Iterable[NodeRule]) -> tuple[dict[str, Roles], dict[str, str]]:
    """Return the rules by name of nodes and of the tensors that they make, and why nodes are left in float, by id.

    Args:
        model: the user's own graph, before any rewriting.
        rules: in order.

    Raises:
        UsageError: ``pattern-no-match``: a rule that matches nothing, or a tensor that the model has not.
    """
    found: dict[str, Roles] = {}
    left_out: dict[str, str] = {}
    for rule in rules:
        nodes, inputs = list(_matching(model, rule)), list(_inputs(model, rule))
        if not nodes and not inputs:
            raise UsageError("pattern-no-match", f"the rule for {rule} matches no node", hint=_hint(model, rule))
        for name in (name for node in nodes for name in node_names.of(node)):
            weights, activations = found.get(name, (TensorRule(), TensorRule()))
            found[name] = (rule.weights.over(weights), rule.activations.over(activations))
            if rule.float:
                left_out[name] = f"left in float by the rule for {rule}"
        for name in inputs:  # no node makes these: a rule by name is for whatever reads them
            _, activations = found.get(name, (TensorRule(), TensorRule()))
            found[name] = (TensorRule(), rule.activations.over(activations))
    return {name: roles for name, roles in found.items() if any(role.given() for role in roles)}, left_out


def _matching(model: ir.Model, rule: NodeRule) -> Iterator[ir.Node]:
    inside = None if rule.between is None else _between(model, *rule.between)
    expression = re.compile(rule.regex or "")
    for node in walk.nodes(model):
        names = list(node_names.of(node))
        if (
            (inside is None or node in inside)
            and (not rule.operator or node.op_type in rule.operator)
            and (not rule.name or any(node_names.matches(node, pattern) for pattern in rule.name))
            and (rule.regex is None or any(expression.search(name) for name in names))
        ):
            yield node


def _inputs(model: ir.Model, rule: NodeRule) -> Iterator[str]:
    """Return names of graph inputs that a rule without other conditions names."""
    if rule.regex is None and not rule.operator and rule.between is None and rule.activations.given():
        names = [str(value.name) for value in model.graph.inputs]
        yield from (name for name in names if any(node_names.matches_name(name, pattern) for pattern in rule.name))


def _between(model: ir.Model, first: str, last: str) -> set[ir.Node]:
    """Return the nodes of the main graph that are on a way from tensor `first` to tensor `last`."""
    known = {str(value.name): value for value in walk.values(model.graph) if value.name}
    for name in (first, last):
        if name not in known:
            hint = discover.suggestion(name, sorted(known))
            raise UsageError("pattern-no-match", f"a rule names {name!r}, which is no tensor of the model", hint=hint)
    behind: set[ir.Node] = set()
    pending = [known[first]]
    while pending:
        users = {node for node in pending.pop().consumers() if node not in behind}
        behind |= users
        pending += walk.outputs(users)
    before: set[ir.Node] = set()
    pending = [known[last]]
    while pending:
        producer = pending.pop().producer()
        if producer is not None and producer not in before:
            before.add(producer)
            pending += [value for value in producer.inputs if value is not None]
    return behind & before


def _hint(model: ir.Model, rule: NodeRule) -> str:
    """Suggest what the rule may have meant: an operator that the model has, or a name."""
    if rule.operator:
        return f"operators of the model: {', '.join(sorted({node.op_type for node in walk.nodes(model)}))}"
    names = sorted({name for node in walk.nodes(model) for name in node_names.of(node)})
    return discover.suggestion(rule.name[0] if rule.name else str(rule.regex), names)


def text(roles: Roles) -> str:
    """Return the rules of a node as text that goes into its metadata."""
    return json.dumps([role.given() for role in roles])


def parse(text: str) -> Roles:
    """Return the rules that :func:`text` wrote."""
    weights, activations = json.loads(text)
    return TensorRule(**weights), TensorRule(**activations)


def of_node(node: ir.Node, rules: Mapping[str, Roles], value: ir.Value | None = None) -> Roles | None:
    """Return the rules of `node`, found by its name or by the tensors that it makes; None where it has none.

    What it reads as `value`, a graph input that has a rule of its own, follows that rule.
    """
    if value is not None and value.is_graph_input() and str(value.name) in rules:
        return rules[str(value.name)]
    return next((rules[name] for name in node_names.of(node) if name in rules), None)


def of_plan(plan: QuantPlan) -> Iterator[dict[str, Any]]:
    """Return rules that say what `plan` says: of a tensor that some nodes alone read quantized for these, else by its name."""
    # What a node reads on a grid of its own comes last: a later rule wins, and the tensor's own is for its producer.
    for edge in sorted(plan.edges, key=lambda edge: edge.consumers is not None):
        spec = edge.decision
        if not isinstance(spec, TensorSpec):
            continue
        kind = {"type": spec.qtype.storage} if spec.qtype.storage in TYPES else {}
        found: dict[str, Any] = {
            **kind,
            "symmetric": spec.symmetric,
            "bits": spec.qtype.bits,
            "observer": spec.observer,
        }
        names = list(dict.fromkeys(node for node, _ in edge.consumers or ())) or [edge.tensor]
        name = names[0] if len(names) == 1 else names
        if spec.role != "weight":
            yield {"name": name, "activations": found}
        elif spec.granularity != "block":
            yield {"name": name, "weights": {**found, "per_channel": spec.granularity == "channel"}}
