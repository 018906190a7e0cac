"""Small QDQ files, sound or with a defect."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

RNG = np.random.default_rng(7)
WEIGHT = (RNG.integers(-60, 60, (2, 2, 3, 3)) * np.float32(0.01)).astype(np.float32)

SOUND = """
    xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
    wq = QuantizeLinear<axis=0>(w, ws, wz) wd = DequantizeLinear<axis=0>(wq, ws, wz)
    bd = DequantizeLinear<axis=0>(b, bs, bz)
    t = Conv<pads=[1,1,1,1]>(xd, wd, bd)
    r = Relu(t)
    rq = QuantizeLinear(r, rs, rz) y = DequantizeLinear(rq, rs, rz)"""
"""A convolution with everything that onnxruntime wants of it."""

CONSTANTS: dict[str, np.ndarray] = {
    "s": np.asarray(0.05, np.float32),
    "z": np.asarray(120, np.uint8),
    "w": WEIGHT,
    "ws": np.asarray([0.01, 0.01], np.float32),
    "wz": np.zeros(2, np.int8),
    "b": np.asarray([100, -200], np.int32),
    "bs": np.float32(0.05) * np.asarray([0.01, 0.01], np.float32),
    "bz": np.zeros(2, np.int32),
    "rs": np.asarray(0.0625, np.float32),
    "rz": np.asarray(0, np.uint8),
}
"""For ``SOUND``; a test replaces some and adds others."""


def model(
    body: str = SOUND,
    constants: Mapping[str, np.ndarray] | None = None,
    *,
    inputs: str = "float[1,2,4,4] x",
    outputs: str = "float[1,2,4,4] y",
    opset: int = 21,
    functions: str = "",
) -> onnx.ModelProto:
    """The model with `body`; of ``CONSTANTS``, changed by `constants`, it has those that the body names."""
    imports = f'opset_import: ["" : {opset}, "com.microsoft" : 1]'
    text = f"<ir_version: 10, {imports}>\ng ({inputs}) => ({outputs}) {{ {body} }}\n{functions}"
    made = onnx.parser.parse_model(text)
    read = {name for node in made.graph.node for name in node.input} | set(constants or ())
    for name, array in {**CONSTANTS, **(constants or {})}.items():
        if name in read:
            made.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return made


def changed(*replacements: tuple[str, str], **constants: object) -> onnx.ModelProto:
    """``SOUND`` with parts of its text replaced, and with other constants."""
    body = SOUND
    for old, new in replacements:
        assert old in body, old
        body = body.replace(old, new)
    return model(body, {name: np.asarray(value) for name, value in constants.items()})
