"""Names: every node has one, and in the main graph and its bodies no two nodes and no two values share one."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log, inline_graphs


class UniqueNames(Pass):
    """Nodes without a name get one; a name that several nodes have stays with the first of them.

    1. A node without a name is called ``<first output>_<operator>``.
    2. Of several nodes with one name, in whichever scope, the first keeps it and the others become ``<name>_1``, ...
       onnx.checker accepts such models, onnxruntime refuses them where the nodes lie in one graph, and a plan that
       addresses nodes by name needs them apart.
    3. A value inside a control-flow body that is called like one of another body, which ONNX allows, becomes
       ``<name>_1``, ... Nothing outside can see it. Other value names, and those inside functions, are left alone.

    Tolerance: none, names do not compute. ::

        y = Relu(x)      z = Relu(y)             # no names
        [y_Relu] y = Relu(x)   [z_Relu] z = Relu(y)
    """

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Name nodes; see the class."""
        log = Log()
        seen: set[str] = set()
        for node in walk.nodes(model):
            if not node.name:
                first = next((v.name for v in node.outputs if v.name), None)
                node.name = context.names.fresh(f"{first}_{node.op_type}" if first else node.op_type)
                log.did("nodes without a name were named after their first output", node)
            elif node.name in seen:
                old, node.name = node.name, context.names.fresh(node.name)
                log.did(f"a second node was called {old!r}: it got a name of its own", node)
            seen.add(node.name)
        _name_values(model, context, log)
        return log.result()


def _name_values(model: ir.Model, context: Context, log: Log) -> None:
    owners: dict[str, ir.Value] = {}
    for graph in inline_graphs(model):
        for value in list(walk.values(graph)):
            if not value.name or owners.setdefault(value.name, value) is value:
                continue
            old, value.name = value.name, context.names.fresh(value.name)
            log.did(f"values of several bodies were called {old!r}: they got names of their own", value.name)
