"""Model-local functions that nothing calls, since their names are those of operators."""

from __future__ import annotations

import onnx.defs
import onnx_ir as ir


def drop(model: ir.Model) -> ir.Model:
    """Take functions with the name of an ONNX operator of the imported opset out of `model`.

    ONNX leaves to runtimes which of the two is meant, and onnxruntime takes the operator.
    """
    for domain, op_type, overload in list(model.functions):
        version = model.opset_imports.get(domain)
        if not overload and version is not None and onnx.defs.has(op_type, version, domain):
            del model.functions[domain, op_type, overload]
    return model
