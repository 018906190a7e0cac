"""A user's graphsurgeon function as a pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxqat.errors import QatError
from onnxqat.graph import graphsurgeon
from onnxqat.passes._base import Context, Pass, Rewrite, failed
from onnxqat.passes._edits import adopt
from onnxqat.passes._function import content

if TYPE_CHECKING:
    import onnx_graphsurgeon as gs


class GsPass(Pass):
    """Run `fn` on the onnx_graphsurgeon Graph of the model.

    1. `fn` gets a private graph and edits it, or returns another one.
    2. Metadata and doc strings, which graphsurgeon drops, are put back on the model and on values and nodes whose
       output names are the same.
    3. When `fn` changes nothing, the model is left as it is.
    4. Models with parts that graphsurgeon cannot hold are refused with ``model-graphsurgeon``.

    Tolerance: that of `fn`. ::

        def rename(graph): graph.outputs[0].inputs[0].name = "last"
        run_passes(model, [GsPass(rename)])

    Args:
        fn: takes a ``gs.Graph``; returns one, or None when it edited in place.
        name: how reports call the pass; the function's name by default.
    """

    def __init__(self, fn: Callable[[gs.Graph], gs.Graph | None], name: str | None = None) -> None:
        self.fn = fn
        self.name = name or getattr(fn, "__name__", "graphsurgeon").replace("_", "-")

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Run the function; see the class.

        Raises:
            UsageError: ``pass-failed``: the function raised something else than a QatError.
        """
        graph = graphsurgeon.to_gs(model)
        before = content(graphsurgeon.from_gs(graph))
        try:
            result = self.fn(graph)
        except QatError:
            raise
        except Exception as error:
            raise failed(self.name, error) from error
        edited = graphsurgeon.from_gs(graph if result is None else result)
        if content(edited) == before:
            return Rewrite(False)
        adopt(model, edited)
        return Rewrite(True)
