"""QDQ files as quantizers of other people write them: imported as trainable masters and written back."""

from __future__ import annotations

import io

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator

from onnxqat import numerics
from onnxqat.bridge.export.write_back import write_back
from onnxqat.bridge.importing import values
from onnxqat.bridge.importing.importer import to_torch
from onnxqat.bridge.quantizers.fake_quantize import FakeQuantize
from onnxqat.bridge.quantizers.state import quantizers
from onnxqat.types import FLOAT_STORAGE, STORAGE, QParams, QType

KINDS = [k for k in STORAGE if k != "int32"] + list(FLOAT_STORAGE)
GRANULARITIES = ["tensor", "channel", "block", "uneven block"]
BLOCKS = {"block": 4, "uneven block": 5}
ROWS, COLUMNS = 6, 12  # of the weight; blocks run along its rows of 12


def grid(kind: str) -> QType:
    if kind in FLOAT_STORAGE:
        return QType(kind, -FLOAT_STORAGE[kind], FLOAT_STORAGE[kind])
    return QType(kind, *STORAGE[kind][:2])


def parameters(kind: str, granularity: str, seed: int = 0) -> QParams:
    random = np.random.default_rng(seed)
    block = BLOCKS.get(granularity)
    shape = {"tensor": (), "channel": (ROWS,)}.get(granularity, (ROWS, -(-COLUMNS // (block or 1))))
    qtype = grid(kind)
    scale = (random.uniform(0.5, 1.5, shape) / qtype.quant_max).astype(np.float32)
    zero = np.zeros(shape, np.int64)
    if not qtype.is_float:
        zero = random.integers(qtype.quant_min, qtype.quant_max, shape, endpoint=True)
    axis = {"tensor": None, "channel": 0}.get(granularity, 1)
    return QParams(scale, np.asarray(zero), qtype, axis, block_size=block)


def constant(name: str, array: np.ndarray, kind: str) -> onnx.TensorProto:
    dtype = ir.DataType[kind.upper()]
    return ir.to_proto(ir.Tensor(np.asarray(array).astype(dtype.numpy()), dtype=dtype, name=name))


def model(
    qparams: QParams, *, stored: bool, scale_type: str = "float", opset: int = 25, zero_point: bool = True
) -> onnx.ModelProto:
    """``y = x @ dequantized(weight)^T`` with the weight as integers, or as float in front of a pair."""
    kind = qparams.qtype.storage
    weight = np.random.default_rng(3).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    attributes = {} if qparams.axis is None else {"axis": qparams.axis}
    if qparams.block_size:
        attributes["block_size"] = qparams.block_size
    held = {"float16": "float16"}.get(scale_type, "float")
    tensors = [constant("s", qparams.scale, scale_type)]
    ends = ["s"]
    if zero_point:
        tensors.append(constant("z", qparams.zero_point, kind))
        ends.append("z")
    nodes = []
    if stored:
        tensors.append(constant("w_quantized", numerics.quantize(weight, qparams), kind))
    else:
        tensors.append(constant("w", weight, held))
        stated = {} if zero_point else {"output_dtype": int(ir.DataType[kind.upper()])}
        nodes.append(helper.make_node("QuantizeLinear", ["w", *ends], ["w_quantized"], **attributes, **stated))
    if scale_type == "float8e8m0":
        attributes["output_dtype"] = int(ir.DataType.FLOAT)
    nodes.append(helper.make_node("DequantizeLinear", ["w_quantized", *ends], ["w_dequantized"], **attributes))
    nodes.append(helper.make_node("Transpose", ["w_dequantized"], ["w_t"], perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["x", "w_t"], ["y"]))
    element = onnx.TensorProto.FLOAT16 if held == "float16" else onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", element, ["N", COLUMNS])],
        [helper.make_tensor_value_info("y", element, ["N", ROWS])],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=13)


def trained(module: torch.nn.Module, dtype: torch.dtype = torch.float32) -> None:
    """Two steps that move weight and scale.

    Stored weights lie on the grid, where the gradient of the scale is 0; they leave it in the first step.
    """
    x = torch.from_numpy(np.random.default_rng(5).standard_normal((7, COLUMNS)).astype(np.float32)).to(dtype)
    for _ in range(2):
        module.zero_grad()
        module(x).square().sum().backward()
        with torch.no_grad():
            for p in module.parameters():
                assert p.grad is not None
                assert torch.isfinite(p.grad).all()
                p.sub_(0.05 * p.abs().mean() * p.grad / (p.grad.abs().max() + 1e-30))
    assert all(p.grad is not None and p.grad.any() for p in module.parameters())


@pytest.mark.parametrize("stored", [False, True], ids=["float", "stored"])
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_grid_is_trainable_and_written_back(kind: str, granularity: str, stored: bool) -> None:
    qparams = parameters(kind, granularity)
    proto = model(qparams, stored=stored)
    module = to_torch(proto)
    ((_, quantizer),) = quantizers(module)
    assert {n for n, _ in module.named_parameters()} == {
        "w_dequantized" if stored else "w",
        f"{'w_dequantized' if stored else 'w'}_quantizer.scale",
    }
    x = np.random.default_rng(4).standard_normal((3, COLUMNS)).astype(np.float32)
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x})
    # float32 sums in another order
    np.testing.assert_allclose(module(torch.from_numpy(x)).detach().numpy(), wanted, rtol=1e-5, atol=1e-5)
    assert write_back(module, proto).SerializeToString() == proto.SerializeToString()

    trained(module)
    changed = write_back(module, proto)
    (found,) = ReferenceEvaluator(changed).run(None, {"x": x})
    assert not np.array_equal(found, wanted)
    np.testing.assert_allclose(module(torch.from_numpy(x)).detach().numpy(), found, rtol=1e-5, atol=1e-5)
    assert quantizer.qparams().scale.shape == qparams.scale.shape


@pytest.mark.parametrize("zero_point", [False, True])
@pytest.mark.parametrize("scale_type", ["float16", "float8e8m0"])
@pytest.mark.parametrize(
    ("kind", "granularity"), [("int4", "block"), ("float4e2m1", "block"), ("float8e4m3fn", "tensor")]
)
def test_scales_of_other_types(kind: str, granularity: str, scale_type: str, zero_point: bool) -> None:
    qparams = parameters(kind, granularity)
    if scale_type == "float8e8m0":
        qparams = QParams(
            numerics.shorten(qparams.scale, 1),
            qparams.zero_point * 0,
            qparams.qtype,
            qparams.axis,
            1,
            qparams.block_size,
        )
    elif not zero_point:
        qparams = QParams(qparams.scale, qparams.zero_point * 0, qparams.qtype, qparams.axis, None, qparams.block_size)
    if scale_type == "float16":
        scale = qparams.scale.astype(np.float16).astype(np.float32)
        qparams = QParams(scale, qparams.zero_point, qparams.qtype, qparams.axis, None, qparams.block_size)
    proto = model(qparams, stored=True, scale_type=scale_type, zero_point=zero_point)
    module = to_torch(proto)
    dtype = torch.float16 if scale_type == "float16" else torch.float32
    x = torch.from_numpy(np.random.default_rng(4).standard_normal((3, COLUMNS)).astype(np.float32)).to(dtype)
    result = module(x)
    assert result.dtype is dtype
    (wanted,) = ReferenceEvaluator(proto).run(None, {"x": x.numpy()})
    limit = 0.02 if dtype is torch.float16 else 1e-5  # sums of twelve products in half precision
    np.testing.assert_allclose(result.detach().numpy(), wanted, rtol=limit, atol=limit)
    assert write_back(module, proto).SerializeToString() == proto.SerializeToString()
    trained(module, dtype)
    changed = to_torch(write_back(module, proto))
    np.testing.assert_allclose(changed(x).detach().numpy(), module(x).detach().numpy(), rtol=limit, atol=limit)


@pytest.mark.parametrize(
    ("kind", "granularity"),
    [("int4", "block"), ("uint4", "tensor"), ("int2", "channel"), ("float8e5m2", "channel"), ("uint16", "block")],
)
def test_written_back_to_every_kind_of_model(tmp_path, kind: str, granularity: str) -> None:
    proto = model(parameters(kind, granularity), stored=True)
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(proto, path)
    module = to_torch(path)
    write_back(module, path, out)
    assert out.read_bytes() == path.read_bytes()
    trained(module)
    write_back(module, path, out)
    from_ir = ir.to_proto(write_back(module, ir.from_proto(proto)))
    assert {t.name: onnx.numpy_helper.to_array(t).tobytes() for t in onnx.load(out).graph.initializer} == {
        t.name: onnx.numpy_helper.to_array(t).tobytes() for t in from_ir.graph.initializer
    }


@pytest.mark.parametrize("kind", FLOAT_STORAGE)
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_float_grids_equal_the_numpy_reference(kind: str, granularity: str) -> None:
    qparams = parameters(kind, granularity)
    module = FakeQuantize(qparams, tensor="t", role="weight")
    x = np.random.default_rng(9).standard_normal((ROWS, COLUMNS)).astype(np.float32) * 1.5
    with torch.no_grad():
        found = module(torch.from_numpy(x)).numpy()
    assert np.array_equal(found.view(np.uint32), numerics.fake_quantize(x, qparams).view(np.uint32))
    assert np.array_equal(module(torch.from_numpy(x)).detach().numpy(), found)


@pytest.mark.parametrize("kind", ["float8e4m3fn", "float4e2m1", "int4", "uint8"])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_gradients_of_blocks_and_float_grids(kind: str, granularity: str) -> None:
    """Against the derivation: 1 inside and 0 outside for x; rounded minus quotient, or the end, for the scale."""
    qparams = parameters(kind, granularity)
    module = FakeQuantize(qparams, tensor="t", role="weight")
    random = np.random.default_rng(11)
    x = (random.standard_normal((ROWS, COLUMNS)) * 1.2).astype(np.float32)
    upstream = random.standard_normal(x.shape).astype(np.float32)
    given = torch.from_numpy(x.copy()).requires_grad_()
    module(given).backward(torch.from_numpy(upstream))

    scale, zero = (numerics.spread(v, qparams, x.shape) for v in (qparams.scale, qparams.zero_point))
    quotient = x / scale
    low, high = qparams.qtype.quant_min - zero, qparams.qtype.quant_max - zero
    inside = (quotient >= low) & (quotient <= high)
    assert 0 < inside.mean() < 1
    np.testing.assert_array_equal(given.grad.numpy(), upstream * inside)
    steps = numerics.quantize(x, qparams) - zero
    each = np.broadcast_to((steps - np.where(inside, quotient, 0)) * upstream, x.shape)
    wanted = np.zeros(qparams.scale.shape)
    if granularity == "tensor":
        wanted += each.sum()
    elif granularity == "channel":
        wanted += each.sum(1)
    else:
        block = qparams.block_size
        for column in range(wanted.shape[1]):
            wanted[:, column] = each[:, column * block : (column + 1) * block].sum(1)
    # float32 sums of up to 72 terms
    found = module.scale.grad.numpy() / module.gradient_scale(given)  # LSQ's factor on the gradient of the scale
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3 * qparams.qtype.quant_max)


@pytest.mark.parametrize("kind", ["float8e4m3fn", "int4"])
def test_blocks_are_calibrated(kind: str) -> None:
    qparams = parameters(kind, "uneven block")
    module = FakeQuantize(qparams, tensor="t", role="weight", symmetric=True)
    module.state = "calibrate"
    x = np.random.default_rng(2).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    module(torch.from_numpy(x))
    module.apply_observed()
    found = module.qparams()
    for start, column in zip(range(0, COLUMNS, 5), found.scale.T, strict=True):
        largest = np.abs(x[:, start : start + 5]).max(1)
        np.testing.assert_allclose(column * qparams.qtype.quant_max, largest, rtol=1e-6)  # one division in float32


def test_quotient_of_a_half_precision_scale_is_rounded_from_version_23_on() -> None:
    """By the text of version 23, and as onnxruntime computes it."""
    import onnxruntime

    x = np.random.default_rng(0).standard_normal(20000).astype(np.float16)
    results = {}
    for opset in (21, 23):
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        ]
        half = onnx.TensorProto.FLOAT16
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", half, ["N"])],
            [helper.make_tensor_value_info("y", half, ["N"])],
            [constant("s", np.float16(0.0123), "float16"), constant("z", np.int8(3), "int8")],
        )
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        module = to_torch(proto)
        assert len(list(quantizers(module))) == 1
        results[opset] = module(torch.from_numpy(x)).detach().numpy()
        np.testing.assert_array_equal(results[opset], session.run(None, {"x": x})[0])
    assert not np.array_equal(results[21], results[23])


def test_negative_scales_of_blocks() -> None:
    """onnxruntime's symmetric 4-bit quantizer gives the value of largest magnitude the code -8, whatever its sign."""
    given = parameters("int4", "block")
    signs = np.random.default_rng(6).choice([-1, 1], given.scale.shape).astype(np.float32)
    qparams = QParams(given.scale * signs, given.zero_point * 0, given.qtype, given.axis, block_size=given.block_size)
    proto = model(qparams, stored=True, zero_point=False)
    module = to_torch(proto)
    assert len(list(quantizers(module))) == 1
    assert write_back(module, proto).SerializeToString() == proto.SerializeToString()
    trained(module)
    changed = write_back(module, proto)
    x = np.random.default_rng(4).standard_normal((3, COLUMNS)).astype(np.float32)
    (found,) = ReferenceEvaluator(changed).run(None, {"x": x})
    # float32 sums in another order
    np.testing.assert_allclose(module(torch.from_numpy(x)).detach().numpy(), found, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [None, 0])
def test_stored_integers_behind_a_clip(axis: int | None) -> None:
    """brevitas' form of a weight of few bits."""
    random = np.random.default_rng(1)
    shape = () if axis is None else (ROWS,)
    scale = random.uniform(0.1, 0.3, shape).astype(np.float32)
    codes = random.integers(-3, 4, (ROWS, COLUMNS)).astype(np.int8)
    attributes = {} if axis is None else {"axis": axis}
    graph = helper.make_graph(
        [
            helper.make_node("Clip", ["w_quantized", "low", "high"], ["w_clipped"]),
            helper.make_node("DequantizeLinear", ["w_clipped", "s", "z"], ["w"], **attributes),
            helper.make_node("Gemm", ["x", "w"], ["y"], transB=1),
        ],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", COLUMNS])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", ROWS])],
        [
            constant("s", scale, "float"),
            constant("z", np.zeros(shape), "int8"),
            constant("low", np.int8(-3), "int8"),
            constant("high", np.int8(3), "int8"),
            constant("w_quantized", codes, "int8"),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    module = to_torch(proto)
    ((_, quantizer),) = quantizers(module)
    assert (quantizer.quant_min, quantizer.quant_max) == (-3, 3)
    assert write_back(module, proto).SerializeToString() == proto.SerializeToString()
    trained(module)
    x = random.standard_normal((3, COLUMNS)).astype(np.float32)
    (found,) = ReferenceEvaluator(write_back(module, proto)).run(None, {"x": x})
    # float32 sums in another order
    np.testing.assert_allclose(module(torch.from_numpy(x)).detach().numpy(), found, rtol=1e-5, atol=1e-5)


def test_nvfp4_form_runs_and_trains_the_scales() -> None:
    """Two levels: float4 weights, blocked float8 scales, one float scale: the scales are a quantized weight."""
    random = np.random.default_rng(1)
    codes = random.choice([-6, -3, -1.5, -0.5, 0, 0.5, 1, 2, 4, 6], (4, 32)).astype(np.float32)
    scales = random.choice([0.5, 1, 1.5, 2, 8], (4, 2)).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["w_scale", "w_scale_scale"], ["scale"]),
        helper.make_node("DequantizeLinear", ["w", "scale"], ["w_float"], axis=1, block_size=16),
        helper.make_node("MatMul", ["x", "w_float"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 32])],
        [
            constant("w", codes, "float4e2m1"),
            constant("w_scale", scales, "float8e4m3fn"),
            constant("w_scale_scale", np.float32(0.125), "float"),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    module = to_torch(proto)
    x = random.standard_normal((2, 4)).astype(np.float32)
    wanted = x @ (codes * np.repeat(scales * 0.125, 16, 1))
    result = module(torch.from_numpy(x))
    np.testing.assert_allclose(result.detach().numpy(), wanted, rtol=1e-5, atol=1e-5)  # sums of four products
    result.sum().backward()
    assert module.get_parameter("scale").grad.any()
    assert write_back(module, proto).SerializeToString() == proto.SerializeToString()


def test_state_survives_a_checkpoint() -> None:
    module = to_torch(model(parameters("int4", "block"), stored=True))
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    other = to_torch(model(parameters("int4", "block", seed=8), stored=True))
    other.load_state_dict(torch.load(buffer), strict=True)
    x = torch.ones(2, COLUMNS)
    assert torch.equal(module(x), other(x))


@pytest.mark.parametrize("kind", ["uint16", "uint32", "int4", "uint2", "float8e4m3fn", "float4e2m1", "float8e8m0"])
def test_constants_that_no_quantizer_owns_are_written_back_unchanged(kind: str) -> None:
    array = np.asarray([[0, 1, 1, 2], [1, 2, 0, 1]]) if kind != "float8e8m0" else np.asarray([[0.5, 1, 2, 4]] * 2)
    graph = helper.make_graph(
        [helper.make_node("Transpose", ["c"], ["t"]), helper.make_node("Reshape", ["t", "shape"], ["y"])],
        "g",
        [helper.make_tensor_value_info("shape", onnx.TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("y", int(ir.DataType[kind.upper()]), [None])],
        [constant("c", array, kind)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=13)
    module = to_torch(proto)
    found = values.array(module(torch.tensor([8])), ir.DataType[module.output_types[0]])
    np.testing.assert_array_equal(found.astype(np.float32), array.T.reshape(-1).astype(np.float32))
    assert write_back(module, proto).SerializeToString() == proto.SerializeToString()
