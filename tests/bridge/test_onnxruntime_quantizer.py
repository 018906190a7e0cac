"""Files that onnxruntime's own quantizer writes: imported bit for bit, trained, written back, and sound to the lint."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from onnxqat.bridge.export.write_back import write_back
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.linting.lint import lint
from tests.bridge import parity

RANDOM = np.random.default_rng(0)
DATA = [{"x": RANDOM.standard_normal((1, 3, 6, 6)).astype(np.float32)} for _ in range(4)]
HEADS = {
    "conv": ("y = Conv<kernel_shape=[1,1]>(r, w1, b1)", (1, 4, 1, 1)),
    "transposed": ("y = ConvTranspose<kernel_shape=[1,1], group=2>(r, w1, b2)", (4, 1, 1, 1)),
    "gemm": ("g = GlobalAveragePool(r) f = Flatten(g) y = Gemm<transB=1>(f, w1, b1)", (1, 4)),
}


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """The calibration data, once."""

    def __init__(self) -> None:
        self.left = iter(DATA)

    def get_next(self) -> Any:
        """The next feeds; None at the end."""
        return next(self.left, None)


def network(head: str) -> onnx.ModelProto:
    """A convolution, a Relu and a layer with one output channel per group."""
    line, shape = HEADS[head]
    model = onnx.parser.parse_model(f"""
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[1, 3, 6, 6] x) => (float[1, c, h, w] y)
    {{
        c = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w0, b0)
        r = Relu(c)
        {line}
    }}""")
    random = np.random.default_rng(1)
    shapes = {"w0": (4, 3, 3, 3), "b0": (4,), "w1": shape, "b1": (1,), "b2": (2,)}
    for name, size in shapes.items():
        if any(name in node.input for node in model.graph.node):
            values = (random.standard_normal(size) / 3).astype(np.float32)
            model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("per_channel", [True, False])
def test_static_quantization_of_layers_with_one_output_channel(head: str, per_channel: bool, tmp_path: Path) -> None:
    onnx.save(network(head), tmp_path / "float.onnx")
    quantize_static(
        tmp_path / "float.onnx",
        tmp_path / "quantized.onnx",
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=per_channel,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    model = onnx.load(tmp_path / "quantized.onnx")
    module = to_torch(model)
    assert_same(module, model)
    assert [f.code for f in lint(model).findings if f.severity == "error"] == []
    with torch.no_grad():
        for _, quantizer in quantizers(module):
            for scale in quantizer.parameters(recurse=False):
                scale.mul_(1.25)
    written = write_back(module, model)
    assert written.SerializeToString() != model.SerializeToString()
    assert_same(module, written)
    for tensor, old in zip(written.graph.initializer, model.graph.initializer, strict=True):
        assert (tensor.name, tensor.dims, tensor.data_type) == (old.name, old.dims, old.data_type)


def assert_same(module: Any, model: onnx.ModelProto) -> None:
    """The module and onnxruntime give the same bits."""
    wanted = parity.session(model).run(None, DATA[0])
    found = parity.run_module(module, DATA[0])
    assert all(np.array_equal(f, w) for f, w in zip(found, wanted, strict=True))
