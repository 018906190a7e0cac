"""A constant whose readers need different quantization becomes several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxqat.errors import UsageError
from onnxqat.graph import build, query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, scope_map

Uses = Sequence[Sequence[tuple[str, int]]]


class SplitSharedInitializers(Pass):
    """Each group of readers of a constant gets a constant of its own.

    1. The first group keeps the constant, each further one gets a copy, ``<name>_1``, ``<name>_2``, ...
    2. Readers that no group names keep the constant.
    3. A reader that reads something else by now is left alone, so that a second run changes nothing.
    4. In a function body the copy is a Constant node beside the original.

    Tolerance: none. ::

        y = MatMul(x, w)     z = Gather(w, i)
        y = MatMul(x, w)     z = Gather(w_1, i)

    Args:
        groups: for a constant's name, its readers as groups of (node name, input index).
    """

    def __init__(self, groups: Mapping[str, Uses]) -> None:
        self.groups = {name: [list(uses) for uses in groups[name]] for name in groups}

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Split; see the class."""
        log = Log()
        nodes = {str(n.name): n for n in walk.nodes(model) if n.name}
        scopes = scope_map(model)
        for name, groups in self.groups.items():
            for uses in groups[1:]:
                readers = [self._reader(nodes, node, index) for node, index in uses]
                self._split(name, [r for r in readers if _reads(*r, name)], scopes, context.names, log)
        return log.result()

    @staticmethod
    def _reader(nodes: Mapping[str, ir.Node], name: str, index: int) -> tuple[ir.Node, int]:
        node = nodes.get(name)
        if node is None or not 0 <= index < len(node.inputs):
            raise UsageError("name-unknown", f"there is no input {index} of a node {name!r}")
        return node, index

    @staticmethod
    def _split(
        name: str, readers: list[tuple[ir.Node, int]], scopes: dict[int, walk.Scope], names: build.Names, log: Log
    ) -> None:
        if not readers:
            return
        node, index = readers[0]
        value = node.inputs[index]
        data = query.constant_tensor(value)
        if value is None or data is None:
            log.left(f"{name} is not constant and was not split", node)
            return
        producer = value.producer()
        home = scopes[id(producer.graph if producer is not None else value.graph)]
        copy = build.constant(home, names.fresh(name), data.numpy(), data.dtype, before=producer)
        copy.doc_string = value.doc_string
        copy.metadata_props.update(value.metadata_props)
        for reader, place in readers:
            reader.replace_input_with(place, copy)
        log.did(f"{name} was copied for readers that need it quantized in another way", *(n for n, _ in readers))


def _reads(node: ir.Node, index: int, name: str) -> bool:
    value = node.inputs[index]
    return value is not None and value.name == name
