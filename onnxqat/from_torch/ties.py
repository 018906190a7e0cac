"""Parameters that several submodules share, and that the file holds as copies."""

from __future__ import annotations

import onnx_ir as ir
from torch import nn

from onnxqat.graph import query
from onnxqat.types import Remark


def parted(module: nn.Module, model: ir.Model) -> list[Remark]:
    """A remark for each shared parameter that fewer nodes read than modules share it: an exporter transposed a copy.

    Nothing is wrong with the file, but training changes the copies apart.
    """
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    found = []
    for shared in names.values():
        uses = sum(query.reads(model.graph.initializers[n]) for n in shared if n in model.graph.initializers)
        if len(shared) > 1 and uses < len(shared):
            text = "parameters that the module shares are copies in the file, and training changes them apart"
            found.append(Remark(text, tuple(shared), "export"))
    return found
