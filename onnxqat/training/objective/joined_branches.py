"""Inner tensors that a run compares with the teacher's where the user names none: sums of branches, with 2-bit grids."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch

from onnxqat.bridge.module import OnnxModule
from onnxqat.bridge.quantizers.state import state
from onnxqat.graph import qdq, query
from onnxqat.graph.quantizer import Quantizer
from onnxqat.training.data.batches import Batch
from onnxqat.training.execution.execution import Execution
from onnxqat.training.loop.step import call
from onnxqat.training.objective import inner_tensors
from onnxqat.training.objective.features import Features
from onnxqat.training.objective.teachers import TeacherSpec
from onnxqat.training.reconstruction.float_values import is_alike

MOST_BITS = 2
"""Widest grid at which sums are compared: at 4 bits the outputs alone teach as well (docs/decisions/006-bridge.md)."""

_RECTIFIERS = frozenset({"Relu", "Clip"})


def sums(model: ir.Model) -> list[str]:
    """Names of the sums of two branches, behind their Relu or Clip; none where no grid of MOST_BITS rounds one of them.

    There a residual block ends: the tensor holds all that the rest of the network sees of the block. The last one often
    goes to a mean and no layer, and so has no grid; it shows what all blocks have done.

    Args:
        model: with its quantizers.
    """
    found = qdq.quantizers(model)
    by_output = qdq.by_output(found)
    ends = [_end(n.outputs[0]) for n in model.graph if n.op_type == "Add" and not n.domain and _joins(n, by_output)]
    narrow = {id(q.input) for q in found if not q.stored and q.qparams.scheme.qtype.bits <= MOST_BITS}
    return [str(value.name) for value in ends] if any(id(value) in narrow for value in ends) else []


def _joins(added: ir.Node, by_output: dict[int, Quantizer]) -> bool:
    return all(_is_data(side, by_output) for side in added.inputs)


def _end(value: ir.Value) -> ir.Value:
    readers = value.consumers()
    rectified = len(readers) == 1 and readers[0].op_type in _RECTIFIERS and not readers[0].domain
    return readers[0].outputs[0] if rectified else value


def _is_data(value: ir.Value | None, by_output: dict[int, Quantizer]) -> bool:
    """Check whether `value` is none of the constants, such as a bias, quantized or not."""
    if value is None or query.constant_tensor(value) is not None:
        return False
    quantizer = by_output.get(id(value))
    return quantizer is None or (not quantizer.stored and query.constant_tensor(quantizer.input) is None)


def features(
    names: Sequence[str], student: OnnxModule, teachers: Sequence[TeacherSpec], batch: Batch, execution: Execution
) -> Features | None:
    """The feature loss on those of `names` that every teacher has, too, and that mean there what they mean here.

    A pass can have scaled the channels of a tensor that kept its name, so both are computed in float.

    Args:
        names: as :func:`sums` gives them.
        student: on its device.
        teachers: on the same device.
        batch: samples to compare on.
        execution: how outputs are computed.
    """
    found = [each.module for each in teachers]
    modules = [m for m in found if isinstance(m, OnnxModule) and set(m.input_names) <= set(batch.inputs)]
    known = [n for n in names if n in student.tensor_nodes and all(n in m.tensor_nodes for m in modules)]
    if not known or len(modules) != len(found):
        return None
    with state(student, "float"):
        own = _values(student, known, batch, execution)
    for module in modules:
        theirs = _values(module, known, batch, execution)
        known = [n for n in known if is_alike(own[n], theirs[n])]
    return Features(known) if known else None


@torch.no_grad()
def _values(module: OnnxModule, names: Sequence[str], batch: Batch, execution: Execution) -> dict[str, torch.Tensor]:
    device = next(module.parameters()).device
    view = inner_tensors.only(module, names).eval()
    try:
        with execution.autocast(device):
            found = call(view, execution.inputs(batch.to(device)), module.input_names)
    finally:
        view.train(module.training)  # whose submodules are those of the module
    return dict(zip(names, found, strict=True))
