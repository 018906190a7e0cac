"""MatMulNBits: codes several a byte as a master weight with a quantizer, and back into the file."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import numpy_helper

from onnxqat.bridge.export.packed_weights import Packing
from onnxqat.bridge.export.write_back import write_back
from onnxqat.bridge.importing.importer import OnnxModule, to_torch
from onnxqat.bridge.quantizers.state import quantizers
from tests.bridge import one_node, parity

RANDOM = np.random.default_rng(0)
ROWS = 6
FORMS = [(bits, zeros, columns) for bits in (2, 4, 8) for zeros in (False, True) for columns in (64, 40)]


def layer(bits=4, zeros=False, columns=40, block=16, scale_type=np.float32) -> onnx.ModelProto:
    blocks = -(-columns // block)
    arrays = {
        "x": RANDOM.standard_normal((2, 3, columns)).astype(scale_type),
        "w": RANDOM.integers(0, 256, (ROWS, blocks, block * bits // 8)).astype(np.uint8),
        "scales": ((RANDOM.random(ROWS * blocks) + 0.1) / 2**bits).astype(scale_type),
        "zeros": RANDOM.integers(0, 256, ROWS * -(-blocks * bits // 8)).astype(np.uint8) if zeros else None,
    }
    return one_node.make(
        "MatMulNBits",
        arrays,
        constants=("w", "scales", "zeros"),
        outputs={"y": onnx.helper.np_dtype_to_tensor_dtype(np.dtype(scale_type))},
        domain="com.microsoft",
        bits=bits,
        block_size=block,
        N=ROWS,
        K=columns,
    )


def nudge(module: OnnxModule) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(0.5 + torch.rand(parameter.shape, generator=generator))


def constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


@pytest.mark.parametrize(("bits", "zeros", "columns"), FORMS)
def test_a_weight_trains_and_returns_to_its_bytes(bits, zeros, columns, tmp_path: Path) -> None:
    model, path = layer(bits, zeros, columns), tmp_path / "m.onnx"
    onnx.save(model, path)
    module = parity.check(model)
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == {
        "w_dequantized": (ROWS, columns),
        "w_dequantized_quantizer.scale": (ROWS, -(-columns // 16)),
    }
    write_back(module, path, tmp_path / "same.onnx")
    assert (tmp_path / "same.onnx").read_bytes() == path.read_bytes()
    x = torch.from_numpy(RANDOM.standard_normal((4, columns)).astype(np.float32))
    nudge(module)
    module(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in module.parameters())
    for given in (model, ir.from_proto(model)):
        trained = write_back(module, given)
        proto = trained if isinstance(trained, onnx.ModelProto) else ir.to_proto(trained)
        old, new = constants(model), constants(proto)
        assert all(old[name].shape == new[name].shape and old[name].dtype == new[name].dtype for name in old)
        assert (old["w"] != new["w"]).any()
        assert not zeros or (old["zeros"] == new["zeros"]).all()
        np.testing.assert_allclose(to_torch(proto)(x).detach(), module(x).detach(), rtol=1e-5, atol=1e-5)
        parity.check(proto)


def test_what_fills_up_a_row_stays() -> None:
    packing = Packing(4, 2, 5, centred=True)
    packed = RANDOM.integers(0, 256, (2, 8)).astype(np.uint8)
    codes = packing.unpack(packed)
    assert codes.shape == (2, 5)
    assert codes[0, 1] == (packed[0, 0] >> 4) - 8.0
    np.testing.assert_array_equal(packing.pack(codes, packed), packed)
    other = packing.pack(np.clip(codes + 1, -8, 7), packed)
    np.testing.assert_array_equal(other[:, 3:], packed[:, 3:])
    np.testing.assert_array_equal(other[:, 2] >> 4, packed[:, 2] >> 4)
    np.testing.assert_array_equal(packing.unpack(other), np.clip(codes + 1, -8, 7))


def test_half_precision_scales() -> None:
    model = layer(scale_type=np.float16)
    x = np.asarray(RANDOM.standard_normal((2, 3, 40)), np.float16)
    found = parity.run_module(to_torch(model), {"x": x})[0]
    wanted = parity.session(model).run(None, {"x": x})[0]
    assert found.dtype == wanted.dtype == np.float16
    np.testing.assert_allclose(found, wanted, rtol=0.01, atol=0.01)


def tied() -> onnx.ModelProto:
    model = layer()
    node = model.graph.node.add()
    node.CopyFrom(model.graph.node[0])
    node.output[0] = "z"
    model.graph.output.add().CopyFrom(model.graph.output[0])
    model.graph.output[1].name = "z"
    return model


def test_layers_that_share_their_codes_share_a_master() -> None:
    module = to_torch(tied())
    assert len(list(module.parameters())) == len(list(quantizers(module))) * 2 == 2
    one, two = module(torch.randn(2, 3, 40))
    assert torch.equal(one, two)


@pytest.mark.parametrize("case", ["a scale of 0", "codes that are an output", "codes that differ in use"])
def test_others_keep_their_codes(case) -> None:
    model = tied()
    held = {t.name: t for t in model.graph.initializer}
    if case == "a scale of 0":
        scales = numpy_helper.to_array(held["scales"]).copy()
        scales[3] = 0
        held["scales"].CopyFrom(numpy_helper.from_array(scales, "scales"))
    elif case == "codes that are an output":
        model.graph.output.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.UINT8, [ROWS, 3, 8]))
    else:
        held["other"] = numpy_helper.from_array(numpy_helper.to_array(held["scales"]) * 2, "other")
        model.graph.initializer.append(held["other"])
        model.graph.node[1].input[2] = "other"
    module = parity.check(model)
    assert not list(quantizers(module))
    assert module.w.dtype is torch.uint8
