"""What a lowering has to stand: ONNX's reference, gradients, torch.export with dynamic axes, torch.compile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx.reference import ReferenceEvaluator

from onnxqat.bridge.importing.importer import OnnxModule, to_torch
from tests.bridge import one_node, parity

Inputs = Mapping[str, np.ndarray | None]


def tensors(model: onnx.ModelProto, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """The module's arguments."""
    return tuple(torch.from_numpy(np.array(a)) for a in one_node.feeds(model, inputs).values())


def results(module: Any, given: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """What a module returns, always as a tuple."""
    found = module(*given)
    return found if isinstance(found, tuple) else (found,)


def equals_reference(
    model: onnx.ModelProto, inputs: Inputs, rtol: float = 1e-5, atol: float = 1e-6, types: bool = True
) -> None:
    """Same shapes, values and, unless the reference itself errs in them, `types` as ONNX's reference evaluator."""
    given = one_node.feeds(model, inputs)
    found = parity.run_module(to_torch(model), given)
    for f, w in zip(found, ReferenceEvaluator(model).run(None, given), strict=True):
        assert f.shape == w.shape
        assert f.dtype == w.dtype or not types
        np.testing.assert_allclose(f, w, rtol, atol)


def gradients(model: onnx.ModelProto, inputs: Inputs, module: OnnxModule | None = None) -> list[torch.Tensor]:
    """Gradients of the sum of squares of the first output with respect to every float input."""
    leaves = tensors(model, inputs)
    floats = [leaf.requires_grad_() for leaf in leaves if leaf.is_floating_point()]
    results(module or to_torch(model), leaves)[0].square().sum().backward()
    return [torch.zeros_like(f) if f.grad is None else f.grad for f in floats]


def exports(
    op_type: str,
    inputs: Inputs,
    dynamic: Mapping[str, Sequence[int]],
    other: Inputs,
    **options: Any,
) -> None:
    """The node exports and compiles as one graph with the `dynamic` axes of its inputs, and runs on `other` sizes."""
    shapes = {
        name: [f"{name}{axis}" if axis in dynamic.get(name, ()) else size for axis, size in enumerate(array.shape)]
        for name, array in inputs.items()
        if array is not None
    }
    model = one_node.make(op_type, inputs, shapes=shapes, **options)
    module = to_torch(model)
    axes = tuple(
        dict.fromkeys(dynamic.get(name, ()), torch.export.Dim.DYNAMIC) for name in one_node.feeds(model, inputs)
    )
    arguments = [node.target for node in module.graph.nodes if node.op == "placeholder"]
    program = torch.export.export(
        module, tensors(model, inputs), dynamic_shapes=dict(zip(arguments, axes, strict=True)), strict=False
    )
    compiled = torch.compile(module, fullgraph=True, backend="eager", dynamic=True)
    for runner in (program.module(), compiled):
        given = tensors(model, other)
        for f, w in zip(results(runner, given), results(module, given), strict=True):
            torch.testing.assert_close(f, w, rtol=1e-4, atol=1e-5)
