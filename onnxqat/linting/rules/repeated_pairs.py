"""More pairs on one tensor than it needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnxqat.graph import edit
from onnxqat.graph.quantizer import Quantizer
from onnxqat.linting.context import LintContext, constant_values, same_grid, same_width
from onnxqat.linting.rule import Found, Rule, Severity


def _chained(file: LintContext) -> Iterator[tuple[Quantizer, Quantizer]]:
    """Quantizers that read the result of another one, with it."""
    for second in file.quantizers:
        first = None if second.stored else file.making(second.input)
        if first is not None:
            yield first, second


def _repeated(file: LintContext) -> Iterator[Found]:
    for first, second in _chained(file):
        if first.nodes[0].graph is not second.nodes[0].graph:
            continue  # runtimes fuse within a graph: a branch of If needs a pair of its own
        if same_grid(first, second) and first.qparams.axis == second.qparams.axis:
            yield Found("a second pair with the same parameters behind the first", second.nodes[0], second.tensor)


def _collapse(file: LintContext, found: Sequence[Found]) -> None:
    """Readers of the second pair read the first."""
    for place in found:
        second = file.of_node(place.node) if place.node is not None else None
        if second is None:
            continue
        for node in second.dequantize:
            edit.bypass(node, second.input)
    edit.remove_unused(file.model)


def _requantized(file: LintContext) -> Iterator[Found]:
    for first, second in _chained(file):
        if not same_width(first, second) or same_grid(first, second):
            continue  # between widths a conversion is what is meant
        steps = float(second.qparams.scale.ravel()[0] / first.qparams.scale.ravel()[0])
        yield Found(
            f"a second pair, with {steps:.4g} times the scale, behind the first", second.nodes[0], second.tensor
        )


def _groups(file: LintContext) -> Iterator[list[Quantizer]]:
    """The quantizers of each tensor in each graph, where there are several."""
    found: dict[tuple[int, int], list[Quantizer]] = {}
    for quantizer in file.quantizers:
        if not quantizer.stored:
            found.setdefault((id(quantizer.input), id(quantizer.nodes[0].graph)), []).append(quantizer)
    yield from (group for group in found.values() if len(group) > 1)


def _duplicates(file: LintContext) -> Iterator[Found]:
    for group in _groups(file):
        for later in _same_as_earlier(group):
            yield Found("the tensor has another pair with the same parameters", later.nodes[0], later.tensor)


def _same_as_earlier(group: list[Quantizer]) -> list[Quantizer]:
    found = []
    for index, quantizer in enumerate(group):
        if any(same_grid(quantizer, other) and quantizer.qparams.axis == other.qparams.axis for other in group[:index]):
            found.append(quantizer)
    return found


def _two_grids(file: LintContext) -> Iterator[Found]:
    for group in _groups(file):
        first = group[0]
        for other in group[1:]:
            apart = same_width(first, other) and first.qparams.axis == other.qparams.axis
            if apart and not same_grid(first, other):
                kind: Severity | None = "note" if constant_values(other) is not None else None
                ratio = float(other.qparams.scale.ravel()[0] / first.qparams.scale.ravel()[0])
                text = f"one consumer reads it on another grid of the same type, {ratio:.4g} times as coarse"
                yield Found(text, other.nodes[0], other.tensor, kind)


RULES = (
    Rule(
        code="pair-repeated",
        severity="warning",
        defect="a pair stands right behind another with the same parameters",
        reason="the second does nothing; onnxruntime gives other numbers with and without optimization for such files",
        remedy="remove the second pair; not one bit changes",
        source="microsoft/onnxruntime#25259; fastmachinelearning/qonnx#151",
        check=_repeated,
        fix=_collapse,
    ),
    Rule(
        code="pair-requantized",
        severity="warning",
        defect="a pair stands right behind another of the same type, with other parameters",
        reason="values are rounded twice, and onnxruntime's optimizer merges the two into a third grid",
        remedy="decide for one grid, which the two share",
        source="microsoft/onnxruntime#25259, double_qdq_pairs_remover.cc",
        check=_requantized,
        table_decides=True,
    ),
    Rule(
        code="pair-duplicate",
        severity="note",
        defect="a tensor has several pairs with the same parameters",
        reason="harmless to most compilers, and wanted by some; each training tool must keep them equal",
        remedy="one pair for all consumers, unless the target wants one a consumer",
        source="microsoft/onnxruntime#27529; backend tables, key pairs",
        check=_duplicates,
        table_decides=True,
    ),
    Rule(
        code="tensor-two-grids",
        severity="warning",
        defect="a tensor is quantized on two grids of the same type",
        reason="a device stores a tensor once: one of the two is dropped, or a conversion is inserted",
        remedy="one grid a tensor, unless two consumers need different types",
        source="microsoft/onnxruntime#12254",
        check=_two_grids,
    ),
)
