"""A user's function on the model as a pass."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnxqat.errors import QatError
from onnxqat.graph import io
from onnxqat.passes._base import Context, Pass, Rewrite, failed
from onnxqat.passes._edits import adopt


class FunctionPass(Pass):
    """Run `fn` on the ``onnx_ir.Model``.

    1. `fn` gets a private model and edits it, or returns another one.
    2. When `fn` changes nothing, the model is left as it is.

    Tolerance: that of `fn`. ::

        def rename(model): model.graph.node(0).name = "first"
        run_passes(model, [FunctionPass(rename)])

    Args:
        fn: takes an ``onnx_ir.Model``; returns one, or None when it edited in place.
        name: how reports call the pass; the function's name by default.
    """

    def __init__(self, fn: Callable[[ir.Model], ir.Model | None], name: str | None = None) -> None:
        self.fn = fn
        self.name = name or getattr(fn, "__name__", "function").replace("_", "-")

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Run the function; see the class.

        Raises:
            UsageError: ``pass-failed``: the function raised something else than a QatError.
        """
        before = content(model)
        try:
            result = self.fn(model)
        except QatError:
            raise
        except Exception as error:
            raise failed(self.name, error) from error
        if isinstance(result, ir.Model) and result is not model:
            adopt(model, result)
        return Rewrite(content(model) != before)


def content(model: ir.Model) -> bytes:
    """The bytes of `model`, to tell if it was changed."""
    return bytes(io.to_proto(model).SerializeToString(deterministic=True))
