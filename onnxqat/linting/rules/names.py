"""Names that mean two things."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnxqat.graph import walk
from onnxqat.linting import fix
from onnxqat.linting.context import LintContext
from onnxqat.linting.rule import Found, Rule
from onnxqat.passes._edits import inline_graphs
from onnxqat.passes.unique_names import UniqueNames


def _repeated_nodes(file: LintContext) -> Iterator[Found]:
    counts = Counter(str(node.name) for node in file.nodes if node.name)
    seen: set[str] = set()
    for node in file.nodes:
        name = str(node.name or "")
        if counts[name] > 1 and name not in seen:
            seen.add(name)
            yield Found(f"{counts[name]} nodes are called {name!r}", node)


def _repeated_values(file: LintContext) -> Iterator[Found]:
    owners: dict[str, ir.Graph] = {}
    for graph in inline_graphs(file.model):
        for value in walk.values(graph):
            owner = owners.setdefault(str(value.name), graph) if value.name else graph
            if owner is not graph:
                yield Found(
                    f"{value.name!r} of {owner.name!r} is another tensor in {graph.name!r}",
                    value.producer(),
                    str(value.name),
                )


def _rename(file: LintContext, found: Sequence[Found]) -> None:
    """The first keeps its name; interfaces of the model keep theirs."""
    fix.apply(UniqueNames(), file.model)


RULES = (
    Rule(
        code="node-name-repeated",
        severity="warning",
        defect="several nodes have one name",
        reason="tables of ranges, lists of layers and reports of compilers go by name: they hit the wrong node",
        remedy="rename all but the first",
        source="onnxruntime refuses such models within a graph; qualcomm/aimet#3989",
        check=_repeated_nodes,
        fix=_rename,
    ),
    Rule(
        code="tensor-name-repeated",
        severity="warning",
        defect="tensors of several scopes have one name",
        reason="tools that look tensors up by name, onnxruntime's calibration among them, take one for the other",
        remedy="rename those inside the bodies",
        source="microsoft/onnxruntime#24705; ONNX IR, names across scopes",
        check=_repeated_values,
        fix=_rename,
    ),
)
