"""Attributes that a node leaves at their defaults, written out."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from onnxqat.graph import query, walk
from onnxqat.passes._base import Context, Pass, Rewrite
from onnxqat.passes._edits import Log
from onnxqat.passes._setting import Setting


class WriteDefaultAttributes(Pass):
    """Each attribute for which ai.onnx has a default is on the node, quantized or not.

    RKNN-Toolkit2 2.5 fails on a HardSigmoid without `alpha` and on a LayerNormalization without `epsilon`, which it
    computes in float, imx500-converter 3.19 on a LeakyRelu without `alpha`: they do not know the defaults.

    1. The default is that of the operator's version in the model's opset.
    2. Left alone: other domains, operators that were not asked for, attributes without a default, and those that are there.
    3. Left out: what the operator did not have at the opset `oldest`, such as `layout` of a GRU (14): the parts of a compiler
       that read older opsets know no such attribute. RKNN-Toolkit2 refuses the model.

    Tolerance: none. ::

        y = LeakyRelu(x)
        y = LeakyRelu<alpha = 0.01>(x)

    Args:
        op_types: operators to look at; all without.
        oldest: opset from which on attributes are known; 0: all are.
    """

    def __init__(self, op_types: Iterable[str] | None = None, oldest: int = 0) -> None:
        self.op_types = None if op_types is None else frozenset(op_types)
        self.oldest = oldest

    @classmethod
    def for_backend(cls, setting: Setting) -> Pass | None:
        """Run where the table wants attributes written out, on all operators: the compiler reads those in float too."""
        return cls(oldest=setting.table.opset[0]) if setting.table.written_attributes else None

    def rewrite(self, model: ir.Model, context: Context) -> Rewrite:
        """Add what is missing; see the class."""
        log = Log()
        for scope in walk.scopes(model):
            opset = query.opset(model, scope)
            for node in scope:
                asked = self.op_types is None or node.op_type in self.op_types
                if node.domain == "" and asked and self._complete(node, opset):
                    log.did("attributes were written out, at their defaults", node)
        return log.result()

    def _complete(self, node: ir.Node, opset: int) -> bool:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
        known = set(schema.attributes)
        if self.oldest and onnx.defs.has(node.op_type, self.oldest, ""):
            known &= set(onnx.defs.get_schema(node.op_type, self.oldest, "").attributes)
        missing = [a for name, a in schema.attributes.items() if name in known and name not in node.attributes]
        missing = [a for a in missing if a.default_value.name]
        for attribute in missing:
            node.attributes[attribute.name] = ir.serde.deserialize_attribute(attribute.default_value)
        return bool(missing)
