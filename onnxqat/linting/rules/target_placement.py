"""Pairs that a backend's table wants and the file lacks, and pairs in places where they do harm."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxqat.graph import build, qdq, query, walk
from onnxqat.graph.quantizer import Quantizer
from onnxqat.linting.comparison import Compared, compared
from onnxqat.linting.context import LintContext, same_grid
from onnxqat.linting.rule import Found, Rule
from onnxqat.linting.rules.activation_pairs import repeats
from onnxqat.passes._forms import float_name
from onnxqat.placement import fusion_chains
from onnxqat.types import Derived, Shared, TensorSpec


def _is_unread(place: Compared) -> bool:
    """Check whether nothing reads the tensor of `place`, such as an unused output of a Split."""
    made = () if place.node is None else place.node.outputs
    value = next((v for v in made if v.name == place.edge.tensor), None)
    return value is not None and not query.is_used(value)


def _missing(file: LintContext) -> Iterator[Found]:
    if not file.is_quantized:
        return
    for place in compared(file):
        if not place.present and not _is_unread(place):
            yield Found(f"{place.edge.tensor!r} carries no pair: {place.edge.rule}", place.node, place.edge.tensor)


def _wanted_tensors(file: LintContext) -> set[str]:
    target = file.target
    assert target is not None
    plan = target.plan
    return {e.tensor for e in plan.edges} | {c.interior for c in plan.redundant_clips} | set(plan.bare)


def _interiors(file: LintContext) -> dict[str, str]:
    """Tensors inside chains that the target always fuses, with the operator that the chain starts at."""
    target, found = file.target, dict[str, str]()
    for node in () if target is None else walk.nodes(target.plain.model):
        assert target is not None
        fusion = fusion_chains.behind(node, target.table)
        if fusion.members and not fusion.redundant:
            inside = [*node.outputs, *walk.outputs(fusion.members)]
            found.update({str(v.name): node.op_type for v in inside if v is not fusion.output})
    return found


def _unwanted(file: LintContext) -> Iterator[tuple[Quantizer, str]]:
    """Pairs on activations that the table does not ask for, with the name of the float tensor."""
    if file.target is None or not file.is_quantized:
        return
    wanted = _wanted_tensors(file)
    for quantizer in file.quantizers:
        names = {float_name(quantizer), quantizer.tensor, *(str(v.name) for v in quantizer.outputs)}
        if quantizer.role == "activation" and not quantizer.stored and not names & wanted:
            yield quantizer, quantizer.tensor


def _find_pairs_inside(file: LintContext) -> Iterator[Found]:
    interiors = _interiors(file)
    for quantizer, tensor in _unwanted(file):
        if tensor in interiors:
            text = f"a pair stands inside what the target fuses from {interiors[tensor]} on"
            yield Found(text, quantizer.nodes[0], tensor)


def _interface(file: LintContext) -> Iterator[Found]:
    for quantizer, tensor in _unwanted(file):
        sides = file.table.io if file.table is not None else None
        if sides is not None and quantizer.input.is_graph_input() and sides.inputs == "float":
            yield Found("the graph input carries a pair", quantizer.nodes[0], tensor)
        if sides is not None and any(v.is_graph_output() for v in quantizer.outputs) and sides.outputs == "float":
            yield Found("the graph output carries a pair", quantizer.nodes[0], tensor)


def _useless(file: LintContext) -> Iterator[Found]:
    interiors = _interiors(file)
    for quantizer, tensor in _unwanted(file):
        at_end = quantizer.input.is_graph_input() or any(v.is_graph_output() for v in quantizer.outputs)
        if tensor not in interiors and not at_end:
            users = sorted({n.op_type for n in quantizer.readers})
            text = f"no integer kernel of the target reads or writes it ({', '.join(users) or 'no reader'})"
            yield Found(text, quantizer.nodes[0], tensor)


def _not_fused(file: LintContext) -> Iterator[Found]:
    for clip in () if file.target is None else file.target.plan.redundant_clips:
        behind = [q for q in file.named(clip.output) if not q.stored]
        if not behind or repeats(behind[0], (clip.low, clip.high)):
            continue
        inside = [q for q in file.named(clip.interior) if not q.stored]
        if not inside or not same_grid(inside[0], behind[0]):
            limits = f"{clip.low:g}..{clip.high:g}"
            text = f"the pair behind the activation reaches beyond {limits}, and no pair that shares its scale stands in front"
            node = behind[0].input.producer()
            yield Found(text, node if node is not None else behind[0].nodes[0], clip.interior)


def _find_differing_pairs(file: LintContext) -> Iterator[Found]:
    for clip in () if file.target is None else file.target.plan.redundant_clips:
        behind = [q for q in file.named(clip.output) if not q.stored]
        inside = [q for q in file.named(clip.interior) if not q.stored]
        if behind and inside and not same_grid(inside[0], behind[0]):
            ratio = float(inside[0].qparams.scale.ravel()[0] / behind[0].qparams.scale.ravel()[0])
            text = f"the pair in front of the activation has {ratio:.4g} times the scale of the one behind"
            yield Found(text, inside[0].nodes[0], clip.interior)


def _bias(file: LintContext) -> Iterator[Found]:
    for node, decision, present in _biases(file):
        storage = None if present is None else present.qparams.qtype.storage
        if decision.storage == "float" and storage is not None:
            yield Found(
                f"the bias is stored as {storage}; the target takes float", node, str(present.tensor if present else "")
            )
        elif decision.storage == "int32" and storage not in (None, "int32"):
            yield Found(
                f"the bias is stored as {storage}; the target takes int32", node, str(present.tensor if present else "")
            )
        elif decision.storage == "int32" and storage is None and build.LEFT_FLOAT not in node.metadata_props:
            value = query.input_at(node, 2)
            text = "the bias is float; the target's accumulator is int32"
            yield Found(text, node, str(value.name if value is not None else ""), "note")


def _biases(file: LintContext) -> Iterator[tuple[ir.Node, Derived, Quantizer | None]]:
    for edge in () if file.target is None or not file.is_quantized else file.target.plan.edges:
        if isinstance(edge.decision, Derived) and edge.consumers and file.target is not None:
            node = file.target.original(edge.consumers[0][0])
            if node is not None and not qdq.is_quantize(node):
                yield node, edge.decision, file.reading(node, 2)


def _ties(file: LintContext) -> Iterator[Found]:
    groups: dict[str, list[tuple[str, Quantizer]]] = {}
    for place in compared(file):
        decision = place.edge.decision
        root = decision.root if isinstance(decision, Shared) else place.edge.tensor
        if isinstance(place.spec, TensorSpec) and place.spec.role == "activation":
            groups.setdefault(root, []).extend((place.edge.tensor, q) for q in place.present if not q.stored)
    tied = {} if file.target is None else file.target.groups
    for members in (groups[root] for root in groups if root in tied):
        first_name, first = members[0] if members else ("", None)
        for name, quantizer in members[1:]:
            if first is not None and first.qparams.qtype == quantizer.qparams.qtype and not same_grid(first, quantizer):
                ratio = float(quantizer.qparams.scale.ravel()[0] / first.qparams.scale.ravel()[0])
                text = (
                    f"{name!r} has {ratio:.6g} times the scale of {first_name!r}, with which the target wants it shared"
                )
                yield Found(text, quantizer.nodes[0], name)
                break


RULES = (
    Rule(
        code="target-pair-missing",
        severity="warning",
        defect="the target's table wants a pair where the file has none",
        reason="an integer kernel needs all its inputs, and with some targets its output, quantized: the operator runs in float",
        remedy="insert-qdq --keep for this target adds what is missing",
        source="backend table, placement and ops",
        check=_missing,
        target=True,
    ),
    Rule(
        code="target-pair-in-fusion",
        severity="warning",
        defect="a pair stands inside what the target fuses",
        reason="it breaks the fusion: two kernels and a conversion instead of one",
        remedy="insert-qdq --replace for this target",
        source="backend table, fused; NVIDIA/TensorRT#993, NVIDIA/TensorRT#1114",
        check=_find_pairs_inside,
        target=True,
    ),
    Rule(
        code="target-interface",
        severity="warning",
        defect="a graph input or output carries a pair that the target does not want",
        reason="TensorRT stops at a pair on an output of the network (weightConvertors assertion); others add a conversion",
        remedy="insert-qdq --replace for this target",
        source="backend table, io; NVIDIA/TensorRT#2604",
        check=_interface,
        target=True,
    ),
    Rule(
        code="target-pair-useless",
        severity="note",
        defect="a pair stands where the target has no integer kernel",
        reason="it costs accuracy and a conversion, and gains nothing",
        remedy="insert-qdq --replace for this target",
        source="backend table, ops",
        check=_useless,
        target=True,
    ),
    Rule(
        code="target-activation-not-fused",
        severity="warning",
        defect="a Relu or Clip is not repeated by the pair behind it, and no pair that shares its scale stands in front",
        reason="the target drops the activation only where the pair makes it redundant: the layer in front runs in float",
        remedy="put the zero point at the smallest code (uint8), or a pair with the same scale between layer and activation",
        source="backend table, fused, when: clip_is_redundant; onnxruntime qdq_util.cc; microsoft/onnxruntime#11660",
        check=_not_fused,
        target=True,
    ),
    Rule(
        code="target-activation-untied",
        severity="warning",
        defect="a pair stands between a layer and its activation, on another grid than the pair behind",
        reason="QNN's simulator gives results that are off by 2.75; with shared scales by 0.03",
        remedy="insert-qdq --replace for this target lets the two share one scale, or needs no inner pair",
        source="backend table, fused, else: share; QNN HTP run, depthwise Conv, pair, Clip(0, 6), pair",
        check=_find_differing_pairs,
        target=True,
    ),
    Rule(
        code="target-bias-type",
        severity="error",
        defect="a bias is stored in a type that the target does not take",
        reason="TensorRT: `only activation types allowed as input to this layer`",
        remedy="handoff writes the target's form; insert-qdq --replace for this target",
        source="backend table, types, bias; microsoft/onnxruntime#17738",
        check=_bias,
        target=True,
    ),
    Rule(
        code="target-tie",
        severity="warning",
        defect="tensors that share one scale on the target have different parameters",
        reason="the target requantizes, takes one of the scales for all, or runs the operator in float",
        remedy="insert-qdq --replace for this target merges their ranges",
        source="backend table, ops, key share, and passthrough",
        check=_ties,
        target=True,
    ),
)
