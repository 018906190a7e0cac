"""DoReFa: equation 9 in numpy, its odd codes in the file, and what happens where they do not fit."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import numpy_helper

from onnxqat import numerics
from onnxqat.bridge.export.write_back import write_back
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.graph import io
from onnxqat.passes._base import rewrite
from onnxqat.passes.deploy_form import DeployForm
from onnxqat.training import methods
from onnxqat.types import QParams, QType

Array = npt.NDArray[Any]


def make(name: str, bits: int, weight: Array, storage: str | None = None) -> FakeQuantize:
    qtype = QType.of(bits, signed=True, storage=storage)
    scale = np.abs(weight).max(1).astype(np.float32) / qtype.quant_max
    q = methods.method(name)(QParams(scale, np.zeros(len(scale), np.int64), qtype, 0), tensor="w", role="weight")
    q.start(torch.from_numpy(weight))
    return q


def weights(largest: float, seed: int = 0) -> Array:
    values = np.random.default_rng(seed).standard_normal((3, 40)).astype(np.float32)
    return (values / np.abs(values).max() * largest).astype(np.float32)


@pytest.mark.parametrize("bits", [2, 3, 4, 7])
@pytest.mark.parametrize("largest", [0.4, 5.0])
def test_weights_are_those_of_equation_9(bits: int, largest: float) -> None:
    weight = weights(largest)
    q = make("dorefa", bits, weight)
    unit = np.maximum(1, np.abs(weight).max(1, keepdims=True))
    levels = 2**bits - 1
    bounded = np.tanh(weight.astype(np.float64) / unit)
    share = bounded / (2 * np.abs(bounded).max(1, keepdims=True)) + 0.5
    by_paper = 2 * np.rint(share * levels) / levels - 1
    found = q(torch.from_numpy(weight)).detach().numpy()
    scale = q.qparams().scale[:, None]
    np.testing.assert_allclose(found / (scale * levels), by_paper, atol=1e-6)
    codes = np.rint(found / scale)
    assert set(np.unique(codes % 2)) == {1.0}, "odd codes"
    assert np.abs(codes).max() == levels
    best = (weight * by_paper).sum(1) / (by_paper**2).sum(1)
    np.testing.assert_allclose(scale[:, 0] * levels, best, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "bits", "storage"), [("dorefa", 8, None), ("dorefa", 4, "int4"), ("dorefa_affine", 4, None)]
)
def test_the_grid_of_the_file_where_odd_codes_do_not_fit(name: str, bits: int, storage: str | None) -> None:
    weight = weights(0.5)
    q = make(name, bits, weight, storage)
    assert q.qtype == QType.of(bits, signed=True, storage=storage)
    codes = np.rint(q(torch.from_numpy(weight)).detach().numpy() / q.qparams().scale[:, None])
    assert np.array_equal(np.unique(np.abs(codes).max(1)), [q.quant_max])
    assert (codes % 2 == 0).any()


@pytest.mark.parametrize("name", ["dorefa", "dorefa_affine"])
def test_gradients(name: str) -> None:
    weight = weights(0.5)
    q = make(name, 3, weight)
    x = torch.from_numpy(weight).requires_grad_()
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    (q(x) * direction).sum().backward()
    assert x.grad is not None
    assert q.scale.grad is not None
    codes = q(x).detach() / q.scale.detach()[:, None]
    wanted = (codes * direction).sum(1) * q.gradient_scale(x)
    torch.testing.assert_close(q.scale.grad, wanted)
    smooth = torch.from_numpy(weight).requires_grad_()
    bounded = torch.tanh(smooth)
    bounded = bounded / bounded.abs().amax(1, keepdim=True)
    (bounded * (q.scale.detach() * q.quant_max)[:, None] * direction).sum().backward()
    torch.testing.assert_close(x.grad, smooth.grad)


def test_activations_keep_the_range_of_calibration() -> None:
    q = methods.method("dorefa")(
        QParams(np.asarray(1 / 15, np.float32), np.asarray(0), QType.of(4, signed=False)), tensor="x", role="activation"
    )
    x = torch.tensor([-1.0, 0.1, 0.96, 7.0], requires_grad=True)
    q(x).sum().backward()
    np.testing.assert_allclose(q(x).detach().numpy() * 15, [0, 2, 14, 15], rtol=1e-6)
    assert x.grad is not None
    assert x.grad.tolist() == [0, 1, 1, 0]
    assert not q.scale.requires_grad


def network(bits: int) -> onnx.ModelProto:
    """``Conv(x, w) + b`` with activation and weight quantized."""
    text = f"""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[N, 2, 5, 5] x) => (float[N, 3, 3, 3] y)
        <float x_scale = {{0.05}}, int8 x_zero = {{3}}, int8 low = {{{-(2 ** (bits - 1))}}}, int8 high = {{{2 ** (bits - 1) - 1}}},
         int8[3] w_zero = {{0, 0, 0}}, float[3] b = {{0.1, 0.2, -0.3}}>
        {{
            xq = QuantizeLinear (x, x_scale, x_zero)
            xd = DequantizeLinear (xq, x_scale, x_zero)
            wq = QuantizeLinear <axis = 0> (w, w_scale, w_zero)
            wc = Clip (wq, low, high)
            wd = DequantizeLinear <axis = 0> (wc, w_scale, w_zero)
            y = Conv (xd, wd, b)
        }}"""
    weight = np.random.default_rng(1).standard_normal((3, 2, 3, 3)).astype(np.float32) / 4
    scale = (np.abs(weight).reshape(3, -1).max(1) / (2 ** (bits - 1) - 1)).astype(np.float32)
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend([numpy_helper.from_array(weight, "w"), numpy_helper.from_array(scale, "w_scale")])
    onnx.checker.check_model(model)
    return model


def run(model: onnx.ModelProto, x: Array) -> Array:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def stored(model: onnx.ModelProto) -> onnx.ModelProto:
    loaded = io.load(model)
    rewrite(loaded, [DeployForm()])
    return io.like(model, loaded)  # type: ignore[no-any-return]


@pytest.mark.parametrize("deploy", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_file_computes_what_was_trained(bits: int, deploy: bool, tmp_path: Path) -> None:
    model = stored(network(bits)) if deploy else network(bits)
    module = to_torch(model, quantizer_factory=methods.factory("dorefa")).train()
    x = np.random.default_rng(2).standard_normal((4, 2, 5, 5)).astype(np.float32)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.001)
    for _ in range(3):
        optimizer.zero_grad()
        module(torch.from_numpy(x)).square().mean().backward()
        optimizer.step()
    module.eval()
    tuned = write_back(module, model)
    expected = module(torch.from_numpy(x)).detach()
    plain = to_torch(tuned)
    assert torch.equal(plain(torch.from_numpy(x)), expected), "the file's own quantizers give the same bits"
    np.testing.assert_allclose(run(tuned, x), expected.numpy(), atol=1e-5)
    weight = next(q for _, q in quantizers(plain) if q.role == "weight")
    levels = 2**bits - 1 if bits < 8 else 127
    assert weight.quant_max == levels
    again = to_torch(tuned, quantizer_factory=methods.factory("fixed"))
    assert torch.equal(again(torch.from_numpy(x)), expected)
    assert write_back(to_torch(tuned), tuned) == tuned
    names = [(n.op_type, list(n.input), list(n.output)) for n in model.graph.node]
    assert [(n.op_type, list(n.input), list(n.output)) for n in tuned.graph.node] == names


def test_a_weight_with_another_reader_is_left_alone() -> None:
    model = network(4)
    model.graph.node.add(op_type="Identity", input=["w"], output=["w_out"])
    model.graph.output.add(name="w_out").type.CopyFrom(onnx.helper.make_tensor_type_proto(1, (3, 2, 3, 3)))
    module = to_torch(model, quantizer_factory=methods.factory("dorefa"))
    weight = next(q for _, q in quantizers(module) if q.role == "weight")
    assert type(weight) is FakeQuantize
    assert write_back(module, model) == model


def test_channel_of_zeros() -> None:
    weight = weights(0.5)
    weight[1] = 0
    qtype = QType.of(4, signed=True)
    q = methods.method("dorefa")(
        QParams(np.full(3, 0.1, np.float32), np.zeros(3, np.int64), qtype, 0), tensor="w", role="weight"
    )
    q.start(torch.from_numpy(weight))
    assert np.isfinite(
        numerics.fake_quantize(q.export_weight(torch.from_numpy(weight)).detach().numpy(), q.qparams())
    ).all()
