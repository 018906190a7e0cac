"""Node names: every node has one, and no two nodes share one."""

from __future__ import annotations

import onnx_ir as ir

from onnxqat.graph import walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log


class UniqueNames(Pass):
    """Nodes without a name get one; a name that several nodes have stays with the first of them.

    1. A node without a name is called ``<first output>_<operator>``.
    2. Of several nodes with one name, in whichever scope, the first keeps it and the others become ``<name>_1``, ...
       onnx.checker accepts such models, onnxruntime refuses them where the nodes lie in one graph, and a plan that
       addresses nodes by name needs them apart.
    3. Value names are left alone: they are unique in a valid model.

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
        return log.result()
