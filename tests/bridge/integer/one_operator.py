"""One operator between quantizers, and what the default session makes of it."""

from __future__ import annotations

import numpy as np
import onnx
import torch

from onnxqat import to_integer, to_torch
from onnxqat.bridge.integer.unit import Unit
from tests.bridge.integer import networks


def between_pairs(
    node: str,
    shape: str,
    *,
    scales: tuple[float, float] = (0.031, 0.027),
    zeros: tuple[int, int] = (131, 119),
    kind: str = "uint8",
    opset: int = 17,
) -> onnx.ModelProto:
    """``y = node(v)`` between two pairs; `node` is ONNX's text with ``v`` in it."""
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]>
    one (float[{shape}] x) => (float[{"?, " * shape.count(",")}?] y)
    <float s = {{{scales[0]}}}, {kind} z = {{{zeros[0]}}}, float t = {{{scales[1]}}}, {kind} o = {{{zeros[1]}}}> {{
        a = QuantizeLinear(x, s, z) v = DequantizeLinear(a, s, z)
        w = {node}
        b = QuantizeLinear(w, t, o) y = DequantizeLinear(b, t, o) }}""")


def check(model: onnx.ModelProto, x: np.ndarray, unit: str) -> None:
    """The torch module and both engines give what the default session gives, and the unit is there."""
    expected = networks.session(model, x)[0]
    assert len(np.unique(expected)) > 3
    module = to_torch(model, arithmetic="onnxruntime")
    assert [type(m).__name__ for m in module.modules() if isinstance(m, Unit)] == [unit]
    with torch.no_grad():
        np.testing.assert_array_equal(module(torch.from_numpy(x)).numpy(), expected)
    for engine in ("torch", "numpy"):
        found = to_integer(model, engine=engine).run({"x": x})  # type: ignore[arg-type]
        np.testing.assert_array_equal(found.outputs["y"], expected)
    module(torch.from_numpy(x)).square().mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in module.parameters() if p.grad is not None)
